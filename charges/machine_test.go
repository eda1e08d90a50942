package charges_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/duesday/duesday/charges"
)

// slotMachine is what a slot must be after any series of results, late and
// early, and of new attempts; machine compares it with the database.
type slotMachine struct {
	status  charges.Status
	attempt int
	mends   bool // only the customer can
	due     bool // its decline is old enough for a new attempt
	history []string
}

func TestSlot_stateMachine(t *testing.T) {
	t.Parallel()
	b := opened(t, 1000)
	slots := b.claimAll(t)
	dunning := charges.Dunning{Customers: b.relation(t, "duesday.customers"),
		Schedule: slices.Repeat([]time.Duration{time.Hour}, 3)}
	rank := []charges.Status{charges.Claimed, charges.Processing, charges.Rejected, charges.Declined, charges.Succeeded}
	next := 0
	rapid.Check(t, func(t *rapid.T) {
		require.Less(t, next+1, len(slots))
		before, slot := slots[next], slots[next+1]
		next += 2
		m := slotMachine{status: charges.Claimed, attempt: 1}
		period := slot.Period
		t.Repeat(map[string]func(*rapid.T){
			"settle": func(t *rapid.T) {
				of := rapid.IntRange(1, m.attempt).Draw(t, "attempt")
				s := charges.Settlement{
					Key:    charges.Key(slot.CustomerID, period, namespace, of),
					Status: rapid.SampledFrom(rank[1:]).Draw(t, "status"),
				}
				s.NeedsCustomer = s.Status == charges.Declined && rapid.IntRange(0, 3).Draw(t, "mends") == 0
				changed, _, err := charges.Settle(b.ctx, b.conn, []charges.Settlement{s})
				require.NoError(t, err)
				if of != m.attempt || slices.Index(rank, s.Status) <= slices.Index(rank, m.status) {
					require.Zero(t, changed)
					return
				}
				require.Equal(t, 1, changed)
				m.status, m.mends, m.due = s.Status, s.NeedsCustomer, false
				m.history = append(m.history, fmt.Sprint(m.attempt, " ", s.Status))
			},
			"wait": func(t *rapid.T) {
				_, err := b.conn.Exec(b.ctx, `
					UPDATE duesday.charges SET settled_at = settled_at - interval '1 hour' WHERE customer_id = $1`, slot.CustomerID)
				require.NoError(t, err)
				m.due = m.status == charges.Declined
			},
			"retry": func(t *rapid.T) {
				ids, err := b.DueAgain(b.ctx, b.conn, dunning, before.CustomerID, 1)
				require.NoError(t, err)
				opened, err := b.RetryDeclined(b.ctx, b.conn, dunning, []string{slot.CustomerID})
				require.NoError(t, err)
				require.Len(t, opened, len(ids))
				if m.status != charges.Declined || m.mends || !m.due || m.attempt > len(dunning.Schedule) {
					require.Empty(t, opened)
					return
				}
				m.status, m.attempt = charges.Claimed, m.attempt+1
				require.Len(t, opened, 1)
				got := opened[0]
				require.Equal(t, slot.CustomerID, got.CustomerID)
				require.Equal(t, m.attempt, got.Attempt)
				require.Equal(t, charges.Key(slot.CustomerID, period, namespace, m.attempt), got.Key)
				require.Equal(t, slot.Amount, got.Amount)
				require.Less(t, got.WindowAge, time.Minute, "a new key is young")
			},
			"": func(t *rapid.T) {
				var (
					got     slotMachine
					settled bool
					key     string
					status  string
				)
				require.NoError(t, b.conn.QueryRow(b.ctx, `
					SELECT status, attempt, idempotency_key, settled_at IS NOT NULL,
						ARRAY(SELECT attempt || ' ' || status FROM duesday.attempts AS a WHERE a.customer_id = slot.customer_id ORDER BY id)
					FROM duesday.charges AS slot WHERE customer_id = $1`, slot.CustomerID).
					Scan(&status, &got.attempt, &key, &settled, &got.history))
				require.Equal(t, string(m.status), status)
				require.Equal(t, m.attempt, got.attempt)
				require.Equal(t, charges.Key(slot.CustomerID, period, namespace, m.attempt), key)
				require.Equal(t, m.status != charges.Claimed && m.status != charges.Processing, settled)
				require.ElementsMatch(t, m.history, got.history)
			},
		})
		// Out of the next one's way.
		_, _, err := charges.Settle(b.ctx, b.conn, []charges.Settlement{{
			Key: charges.Key(slot.CustomerID, period, namespace, m.attempt), Status: charges.Succeeded}})
		require.NoError(t, err)
	})
}
