package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/job"
)

func TestProgressLine_fitsTheTerminal(t *testing.T) {
	t.Parallel()
	half := job.Progress{
		StartedAt: time.Unix(1, 0), Known: true, PerSecond: 19.84, TimeLeft: 12*time.Minute + 30*time.Second, Left: 15_002,
		Tally: charges.Tally{Succeeded: 14_995, Declined: 3, InDoubt: 2, Unclaimed: 15_000},
	}
	for columns, want := range map[int]string{
		120: "  49% [==================>                     ]  14,995 charged, 3 declined, 2 in doubt, 19.8/s, 12m30s left",
		80:  "  49% [===>      ]  14,995 charged, 3 declined, 2 in doubt, 19.8/s, 12m30s left",
		60:  "  49% [====>      ]  14,995 charged, 3 declined, 2 in doubt",
		40:  "  49% [======>        ]  14,995 charged",
		33:  "  49% [==>     ]  14,995 charged",
		32:  "49% 14,995 charged",
		10:  "49% 14,99",
		1:   "",
		0:   "",
	} {
		got := progressLine(half, columns)
		require.Equal(t, want, got, columns)
		require.Less(t, len(got), max(columns, 1))
	}
	none := job.Progress{StartedAt: time.Unix(1, 0), Known: true}
	require.Equal(t, "0 charged, 0 declined, 0 in doubt", progressLine(none, 80))
	one := none
	one.Tally.Succeeded = 1
	require.Equal(t, " 100% ["+strings.Repeat("=", 36)+"]  1 charged, 0 declined, 0 in doubt", progressLine(one, 80))
	million := none
	million.Tally.Unclaimed, million.Left = 1_000_000, 1_000_000
	require.Equal(t, "   0% ["+strings.Repeat(" ", 36)+"]  0 charged, 0 declined, 0 in doubt", progressLine(million, 80))
	uncounted := half
	uncounted.Known = false
	require.Equal(t, "14,995 charged, 3 declined, 2 in doubt, 19.8/s, 12m30s left", progressLine(uncounted, 80))
	require.Equal(t, "14,995 charged, 3 declined", progressLine(uncounted, 30))
	require.Empty(t, progressLine(job.Progress{}, 80))
}
