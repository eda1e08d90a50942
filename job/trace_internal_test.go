package job

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

func TestTrace_ofNobodyCostsNothing(t *testing.T) {
	w := &work{run: &run{}, inFlight: context.Background()}
	out, slot := charges.Outcome{Verdict: charges.Paid, RequestID: "req_1"}, &task{}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ctx, span := w.traceSlot("charge", slot)
		endSlot(span, &out)
		slot.page.done()
		w.newPage(10, time.Time{})
		_ = ctx
	}))
}
