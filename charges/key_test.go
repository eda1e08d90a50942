package charges_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/duesday/duesday/charges"
)

func TestKey_goldenVectors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		customer  string
		period    charges.Period
		namespace string
		want      string
	}{
		{"cust_123", charges.Period{Year: 2026, Month: time.August}, "quarkus-billing", "43e4cdac97f8e2d5fdc7796b0c7c4af9"},
		{"cust_123", charges.Period{Year: 2026, Month: time.October}, "monthly-billing", "90d385dacce954d9262d71a98c4bf72d"},
	} {
		require.Equal(t, tc.want, charges.Key(tc.customer, tc.period, tc.namespace, 1))
	}
}

func TestKey_laterAttemptsCarryTheirNumber(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("cust_123:2026-10:monthly-billing:attempt-2"))
	require.Equal(t, hex.EncodeToString(sum[:])[:32],
		charges.Key("cust_123", charges.Period{Year: 2026, Month: time.October}, "monthly-billing", 2))
}

func TestLockID_goldenVector(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(0x4b8a978372b6b342), charges.LockID("monthly-billing", "2026-10"))
	// One with the highest bit set, so that the halves of a negative id are right.
	negative := "2026-01"
	for p := (charges.Period{Year: 2026, Month: 1}); charges.LockID(namespace, negative) >= 0; p = p.Add(1) {
		negative = p.String()
	}
	sum := sha256.Sum256([]byte(namespace + ":" + negative))
	require.Equal(t, fmt.Sprintf("%x", sum[:8]), fmt.Sprintf("%016x", uint64(charges.LockID(namespace, negative))))
}

func TestValidateNamespace(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"monthly-billing", "quarkus-billing", "a", "attempt", "attempt-", "attempt-x", "attempt-2b", "my-attempt-2", strings.Repeat("n", 100)} {
		require.NoError(t, charges.ValidateNamespace(ok), ok)
	}
	for bad, why := range map[string]string{
		"":                       "empty",
		"a:b":                    "colon",
		":":                      "colon",
		"attempt-2":              "later attempt",
		"attempt-0123":           "later attempt",
		"two words":              "printable ASCII",
		"tab\t":                  "printable ASCII",
		"line\n":                 "printable ASCII",
		"attempt-2\n":            "printable ASCII",
		"naïve":                  "printable ASCII",
		"\xff":                   "printable ASCII",
		strings.Repeat("n", 101): "at most 100",
	} {
		require.ErrorContains(t, charges.ValidateNamespace(bad), why, "%q", bad)
	}
}

// The alphabet is small and hostile, so that collisions would be found: ids
// with colons are never sent, but their slots have keys too.
func TestKey_differsWhereAnyPartDiffers(t *testing.T) {
	t.Parallel()
	id := rapid.StringMatching(`([a:]|:2026-1[01]|:attempt-[23]|:n){0,4}`)
	ns := rapid.SampledFrom([]string{"n", "a", "attempt", "attempt-", "attempt-2-", "2026-10"})
	type input struct {
		customer, period, namespace string
		attempt                     int
	}
	seen := map[string]input{}
	rapid.Check(t, func(t *rapid.T) {
		p := charges.Period{Year: 2026, Month: time.Month(rapid.IntRange(10, 11).Draw(t, "month"))}
		in := input{id.Draw(t, "id"), p.String(), ns.Draw(t, "namespace"), rapid.IntRange(1, 3).Draw(t, "attempt")}
		require.NoError(t, charges.ValidateNamespace(in.namespace))
		key := charges.Key(in.customer, p, in.namespace, in.attempt)
		require.Regexp(t, `^[0-9a-f]{32}$`, key)
		if other, ok := seen[key]; ok {
			require.Equal(t, other, in, "two charges share a key")
		}
		seen[key] = in
	})
}

func TestKeySQL_isKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	read := `SELECT ` + charges.KeySQL("$1::text", "$2::text", "$3::text", "$4::integer")
	same := func(t require.TestingT, id, ns string, p charges.Period, attempt int) {
		var got string
		require.NoError(t, b.conn.QueryRow(b.ctx, read, id, p.String(), ns, attempt).Scan(&got))
		require.Equal(t, charges.Key(id, p, ns, attempt), got)
	}
	for _, id := range []string{"cust_123", "", "a:b", "Zoë", "💳", `a\b`, `a'b`, "a\nb"} {
		for _, attempt := range []int{1, 2, 10, 2147483647} {
			same(t, id, namespace, b.Period, attempt)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		id := strings.ReplaceAll(strings.ToValidUTF8(rapid.String().Draw(t, "id"), ""), "\x00", "")
		same(t, id, rapid.StringMatching(`[!-9;-~]{1,20}`).Draw(t, "namespace"), drawPeriod(t), rapid.IntRange(1, 99).Draw(t, "attempt"))
	})
}
