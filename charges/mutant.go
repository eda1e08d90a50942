package charges

import (
	"strings"

	"github.com/duesday/duesday/internal/mutant"
)

// mutated is the statement as it is, but for builds that are wrong on purpose:
// it holds the mistakes that are made in SQL.
func mutated(sql string) string {
	replace := func(name, right, wrong string) {
		if mutant.Is(name) {
			sql = strings.Replace(sql, right, wrong, 1)
		}
	}
	const cursor = "SET claim_cursor = (SELECT max(customer_id) FROM page)"
	replace("cursor-stays", cursor, "SET claim_cursor = claim_cursor")
	replace("cursor-too-far", cursor,
		"SET claim_cursor = (SELECT max(customer_id) FROM duesday.dues WHERE billing_period = $1)")
	replace("settle-overwrites",
		"AND array_position($8::text[], result.status) > array_position($8::text[], slot.status)", "")
	replace("window-not-refreshed", "SET key_window_at = clock_timestamp()", "SET key_window_at = key_window_at")
	replace("resend-from-customers", "slot.amount",
		"coalesce((SELECT c.amount FROM duesday.customers AS c WHERE c.id = slot.customer_id), slot.amount)")
	return sql
}
