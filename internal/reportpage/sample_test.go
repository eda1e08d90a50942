package reportpage_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/reportpage"
)

var (
	october = charges.Period{Year: 2026, Month: time.October}
	noon    = time.Date(2026, time.October, 1, 12, 0, 0, 0, time.UTC)
)

func write(t testing.TB, o charges.Overview) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, reportpage.Write(&out, october, o, noon.Add(time.Hour), "v1.2.3"))
	return out.String()
}

func amount(n int64) *int64 { return &n }

// nobody is a period that was opened without an active customer.
func nobody() charges.Overview {
	return charges.Overview{OpenedAt: noon, SettledAt: noon.Add(time.Second)}
}

// one is a period of one customer, who paid.
func one() charges.Overview {
	return charges.Overview{
		Standing: charges.Standing{
			Tally: charges.Tally{Succeeded: 1},
			Money: []charges.Money{{Currency: "jpy", Expected: 1200, Cap: 1320, Succeeded: 1200}},
		},
		OpenedAt: noon, SettledAt: noon.Add(time.Second),
		Timeline: charges.Timeline{First: noon, Last: noon, Step: time.Second, Buckets: []charges.Bucket{{At: noon, Status: charges.Succeeded, Slots: 1}}},
	}
}

// million is an open period with every outcome.
func million() charges.Overview {
	o := charges.Overview{
		Standing: charges.Standing{
			Tally: charges.Tally{Succeeded: 948_310, Declined: 23_077, Rejected: 412, Processing: 9_100, InDoubt: 37, Unclaimed: 19_064},
			Money: []charges.Money{
				{Currency: "eur", Expected: 1_204_550_00, Cap: 1_325_005_00, Succeeded: 1_150_201_10, Declined: 31_048_90, InDoubt: 4_300_00, Unclaimed: 19_000_00},
				{Currency: "jpy", Expected: 88_120_000, Cap: 96_932_000, Succeeded: 88_120_000},
				{Currency: "kwd", Expected: 5_120_450, Cap: 5_632_490, Succeeded: 4_900_120, Processing: 120_330, Declined: 100_000},
				{Currency: "usd", Expected: 99_750_000_00, Cap: 109_725_000_00, Succeeded: 93_001_204_11, Declined: 2_110_540_39, Rejected: 41_200_00, Processing: 910_000_00, InDoubt: 3_700_00, Unclaimed: 3_683_355_50},
			},
		},
		OpenedAt: noon,
		Reasons: []charges.Reason{
			{Status: charges.Declined, Code: "insufficient_funds", Dues: 14_900},
			{Status: charges.Declined, Code: "expired_card", NeedsCustomer: true, Dues: 5_120},
			{Status: charges.Declined, Code: "do_not_honor", Dues: 2_010},
			{Status: charges.Declined, Code: "authentication_required", NeedsCustomer: true, Dues: 804},
			{Status: charges.Rejected, Code: "amount_not_positive", Dues: 390},
			{Status: charges.Declined, Code: "", Dues: 120},
			{Status: charges.Rejected, Code: "resource_missing", Dues: 3},
		},
	}
	step := 15 * time.Minute
	o.Timeline = charges.Timeline{First: noon, Last: noon.Add(54*step + 212*time.Second), Step: step}
	for i := range 55 {
		at := noon.Add(time.Duration(i) * step)
		n := 17_500 + 900*(i%5)
		if i > 20 && i < 26 {
			n = 300 // Stripe was slow
		}
		o.Timeline.Buckets = append(o.Timeline.Buckets,
			charges.Bucket{At: at, Status: charges.Declined, Slots: n / 41},
			charges.Bucket{At: at, Status: charges.Processing, Slots: n / 110},
			charges.Bucket{At: at, Status: charges.Succeeded, Slots: n})
	}
	look := func(kind charges.Kind, dues int, row func(i int) charges.Row) {
		l := charges.Look{Kind: kind, Dues: dues}
		for i := range min(dues, 8) {
			l.First = append(l.First, row(i))
		}
		o.Look = append(o.Look, l)
	}
	look(charges.KindInDoubt, 37, func(i int) charges.Row {
		return charges.Row{CustomerID: fmt.Sprintf("cust_%07d", 7001+i), StripeCustomerID: fmt.Sprintf("cus_Nx7mQ2eZvKYlo%d", i), Amount: amount(100_00), Currency: "usd", Status: "claimed", ClaimedAt: noon.Add(time.Duration(i) * time.Minute)}
	})
	look(charges.KindRejected, 412, func(i int) charges.Row {
		return charges.Row{CustomerID: fmt.Sprintf("cust_%07d", 1+i), StripeCustomerID: fmt.Sprintf("cus_Nx7mQ2eZvKYlo%d", i), Amount: amount(-5), Currency: "usd", Status: "rejected", FailureCode: "amount_not_positive"}
	})
	look(charges.KindNeedsCustomer, 5_924, func(i int) charges.Row {
		return charges.Row{CustomerID: fmt.Sprintf("cust_%07d", 90+i), StripeCustomerID: fmt.Sprintf("cus_Nx7mQ2eZvKYlo%d", i), Amount: amount(19_99), Currency: "eur", Status: "declined",
			ChargeID: fmt.Sprintf("ch_3Nx7mQ2eZvKYlo2C0Qp1v%d", i), FailureCode: "expired_card", FailureMessage: "Your card has expired."}
	})
	look(charges.KindUnclaimed, 19_064, func(i int) charges.Row {
		return charges.Row{CustomerID: fmt.Sprintf("cust_%07d", 980_936+i), StripeCustomerID: fmt.Sprintf("cus_Nx7mQ2eZvKYlo%d", i), Amount: amount(100_00), Currency: "usd", Status: charges.Unclaimed}
	})
	return o
}

// hostile has texts that no page expects.
func hostile() charges.Overview {
	o := one()
	o.Tally = charges.Tally{Succeeded: 1, Rejected: 7}
	l := charges.Look{Kind: charges.KindRejected, Dues: 7}
	for _, id := range []string{
		`<script>document.title="owned"</script>`, `"><img src="http://127.0.0.1:1/x" onerror=alert(1)>`,
		"عميل رقم ١٢٣ في القاهرة", "\u202eright to left, never ended", "line\nbreak\x1b[31m", strings.Repeat("very-long-customer-id", 60), "日本語の顧客👩‍👩‍👧",
	} {
		l.First = append(l.First, charges.Row{CustomerID: id, StripeCustomerID: "cus_" + id, Amount: amount(9223372036854775807), Currency: "<b>usd", Status: "rejected",
			ChargeID: `javascript:alert(1)`, FailureCode: "<i>code", FailureMessage: strings.Repeat("لماذا ", 40) + "<b>why"})
	}
	o.Look = []charges.Look{l}
	o.Reasons = []charges.Reason{{Status: charges.Rejected, Code: "<script>" + strings.Repeat("x", 300), Dues: 7}}
	return o
}
