package job_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/job"
)

// A stored 500 is replayed for a day. However many slots have one, all others
// are charged: it is no outage.
func TestRun_chargesOnBehindManySlotsThatAreStuck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	const stuck = 20 // more than an outage takes
	for i := range stuck {
		b.sim.FaultCustomer(fmt.Sprintf("cus_%d", 10+i), stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
	}
	for range 2 {
		_, err := job.Run(context.Background(), b.Config)
		require.ErrorIs(t, err, job.ErrUnfinished)
		require.Equal(t, charges.Tally{Succeeded: 50 - stuck, InDoubt: stuck}, b.tally(t))
	}
}

// What Stripe has is not what the ledger sends: no rerun mends that, so somebody
// must read why.
func TestRun_saysWhyTheLastSlotIsInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.sim.FaultCustomer("cus_10", slices.Repeat([]stripesim.Fault{{Kind: stripesim.DropAfterCommit}}, 6)...)
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorContains(t, err, "not everything is settled, the last in doubt because of: no decodable answer")
	b.db.Exec(t, `
		UPDATE duesday.charges SET amount = amount + 1, key_window_at = key_window_at - interval '1 day'
		WHERE status = 'claimed'`)
	_, err = job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrUnfinished)
	require.ErrorContains(t, err, "in doubt because of: the answer is not about the charge that was sent: id \"ch_")
	require.Len(t, b.sim.Succeeded(), 50)
}

// refuseKey makes the run send to a spend-cap proxy that refuses its vault key.
func (b *testBundle) refuseKey(t *testing.T, code string) {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":{"type":"invalid_request_error","code":%q,"message":"No."}}`, code)
	}))
	t.Cleanup(proxy.Close)
	gateway, err := charges.NewGateway(charges.GatewayConfig{APIKey: "vk_x", BaseURL: proxy.URL, Workers: 2, Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(gateway.Close)
	b.Sender = charges.NewSender(gateway, charges.NewPacer(10_000, time.Now))
}

// A run whose vault key was given anew to another is deposed. Should it say 3,
// the Job would fail as a whole, and end the run that took over.
func TestRun_whoseVaultKeyWasTakenOverIsWorthAnotherTry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.refuseKey(t, "vault_key_superseded")
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, charges.ErrSuperseded)
	require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
	require.Empty(t, b.sim.Succeeded())
}

func TestRun_whoseVaultKeyWasRevokedIsForAPerson(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.refuseKey(t, "vault_key_revoked")
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrRefused)
	require.Equal(t, exitcode.Stopped, exitcode.Of(err))
}
