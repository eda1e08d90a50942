package spendcap

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func money(body string) (int64, string, *refusal) {
	f, refused := parseForm([]byte(body))
	if refused != nil {
		return 0, "", refused
	}
	return f.money()
}

func TestForm_plainBodies(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"amount=1000&currency=usd",
		"currency=usd&amount=1000",
		"amount=1000&currency=usd&metadata[amount]=7&metadata[currency]=eur",
		"amount=1000&currency=usd&metadata%5Bamount%5D=7",
		"amount=1000&currency=usd&expand[]=a&expand[]=b",
		"amount=1000&currency=usd&description=amount%3D1%26amount%3D2",
		"amount=1000&currency=usd&description=50%25+off%21+%E2%82%AC&receipt_email=a%2Bb@example.com",
		"amount=1000&currency=usd&automatic_payment_methods[enabled]=true&transfer_data[amount]=5",
	} {
		amount, currency, refused := money(body)
		require.Nil(t, refused, body)
		require.EqualValues(t, 1000, amount, body)
		require.Equal(t, "usd", currency, body)
	}
}

// ambiguous are bodies that some parser reads as another amount, or as none.
var ambiguous = []string{
	"", "currency=usd", "amount=1000", "amount=&currency=usd", "amount&currency=usd", "amount=1000&currency=",
	"amount=1&amount=2&currency=usd", "amount=1&amount=1&currency=usd", "amount=1&currency=usd&currency=eur",
	"amount[]=1&currency=usd", "amount=1&amount[]=2&currency=usd", "amount=1&amount[x]=2&currency=usd", "amount=1&currency[]=usd", "amount=1&currency=usd&currency[a]=eur",
	"am%6funt=1&currency=usd", "amount=1&am%6funt=2&currency=usd", "%61mount=1&currency=usd", "amount=1&curr%65ncy=usd", "amount%5B%5D=1&currency=usd",
	"Amount=1&currency=usd", "amount=1&AMOUNT=2&currency=usd", "amount=1&currency=usd&Currency=eur",
	"amount=-1&currency=usd", "amount=%2B1&currency=usd", "amount=+1&currency=usd", "amount=1e3&currency=usd", "amount=1E3&currency=usd", "amount=0x10&currency=usd",
	"amount=1.0&currency=usd", "amount=1,000&currency=usd", "amount=1_000&currency=usd", "amount=0100&currency=usd", "amount=0&currency=usd", "amount=00&currency=usd",
	"amount=1+&currency=usd", "amount=%201&currency=usd", "amount=1%20&currency=usd", "amount=%31&currency=usd", "amount=1%00&currency=usd", "amount=1%0a&currency=usd",
	"amount=١&currency=usd", "amount=%D9%A1&currency=usd", "amount=NaN&currency=usd", "amount=Infinity&currency=usd",
	"amount=9999999999999&currency=usd", "amount=99999999999999999999999&currency=usd", "amount=18446744073709551617&currency=usd",
	"amount=1&currency=USD", "amount=1&currency=us", "amount=1&currency=usdx", "amount=1&currency=u%73d", "amount=1&currency=usd%20",
	"amount=1;amount=2&currency=usd", "amount=1&currency=usd;amount=2", "amount=1&description=x;amount=2&currency=usd", "amount=1&currency=usd& amount=2", "amount=1&currency=usd&+amount=2", "amount=1&currency=usd&amount+=2",
	"amount=1&currency=usd&[amount=2", "amount=1&currency=usd&[[amount]]=2", "amount=1&currency=usd&[amount]=2", "amount=1&currency=usd&]amount=2", "amount=1&currency=usd&amount]=2", "amount=1&currency=usd&amount[=2",
	"amount=1&currency=usd&=2", "amount=1&currency=usd&", "&amount=1&currency=usd", "amount=1&&currency=usd", "amount=1&currency=usd&x",
	"amount=1&currency=usd&amount%00=2", "amount=1&currency=usd&x%00=2", "amount=1&currency=usd&x=%00", "amount=1&currency=usd&x=%zz", "amount=1&currency=usd&%=2", "amount=1&currency=usd&x=%ff",
	"amount=1&currency=usd&x=1&x=2", "amount=1&currency=usd&metadata[a]=1&metadata[a]=2", "amount=1&currency=usd&metadata[a]=1&metadata%5Ba%5D=2", "amount=1&currency=usd&metadata[a]b=1", "amount=1&currency=usd&metadata[[a]]=1", "amount=1&currency=usd&metadata]=1",
	"amount=1&currency=usd&_stripe_account=acct_1", "amount=1&currency=usd&key=sk_live_1", "amount=1&currency=usd&api_key=x", "amount=1&currency=usd&_idempotency_key=x", "amount=1&currency=usd&amount.x=2", "amount=1&currency=usd&a b=2",
	`{"amount":1,"currency":"usd"}`, "amount=1\r\n&currency=usd", "amount=1\x00&currency=usd", "amount=1&currency=usd\n", "\xef\xbb\xbfamount=1&currency=usd", "amount=1?amount=2&currency=usd", "amount=1#&currency=usd", "amount==1&currency=usd",
}

func TestForm_ambiguousBodiesAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range ambiguous {
		_, _, refused := money(body)
		require.NotNil(t, refused, body)
		require.Equal(t, http.StatusBadRequest, refused.status, body)
	}
}

func TestProxy_ambiguousBodiesDoNotReachStripe(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	for _, body := range ambiguous {
		require.Equal(t, 400, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", body)), "%q", body)
	}
	require.Zero(t, b.sim.Stats().Requests)
	b.requireReserved(t, 0, 0)
}

// lax reads a body as the most forgiving parser would: Rack of old, which
// splits at semicolons too, skips spaces, takes leading brackets away, and
// nests; here without regard to case.
func lax(body, name string) (values []string) {
	for _, pair := range regexp.MustCompile(`[&;] *`).Split(body, -1) {
		key, value, _ := strings.Cut(pair, "=")
		if k, err := url.QueryUnescape(key); err == nil {
			key = k
		}
		if v, err := url.QueryUnescape(value); err == nil {
			value = v
		}
		if m := regexp.MustCompile(`^[\[\]\s]*([^\[\]]+)`).FindStringSubmatch(key); m != nil {
			key = strings.TrimSpace(strings.TrimRight(m[1], "\x00"))
		}
		if strings.EqualFold(key, name) {
			values = append(values, value)
		}
	}
	return values
}

func FuzzForm(f *testing.F) {
	for _, body := range ambiguous {
		f.Add(body)
	}
	f.Add(goodBody)
	f.Add(goodBody + "&metadata[amount]=7&expand[]=a&expand[]=b")
	f.Fuzz(func(t *testing.T, body string) {
		amount, currency, refused := money(body)
		if refused != nil {
			return
		}
		// The strict parser, the lax one, and ours agree.
		want := []string{strconv.FormatInt(amount, 10)}
		strict, err := url.ParseQuery(body)
		require.NoError(t, err)
		require.Equal(t, want, strict["amount"])
		require.Equal(t, []string{currency}, strict["currency"])
		require.Equal(t, want, lax(body, "amount"))
		require.Equal(t, []string{currency}, lax(body, "currency"))
		require.Empty(t, lax(body, "_method"))
		require.Positive(t, amount)
	})
}

func FuzzFingerprint(f *testing.F) {
	f.Add(goodBody, goodBody+"&x=1")
	f.Add("a=b%26c=d", "a=b&c=d")
	f.Add("a=1&b=2", "b=2&a=1")
	f.Fuzz(func(t *testing.T, one, other string) {
		a, bad := parseForm([]byte(one))
		if bad != nil {
			return
		}
		b, bad := parseForm([]byte(other))
		if bad != nil {
			return
		}
		va, err := url.ParseQuery(one)
		require.NoError(t, err)
		vb, err := url.ParseQuery(other)
		require.NoError(t, err)
		same := string(a.fingerprint(CreateCharge, nil)) == string(b.fingerprint(CreateCharge, nil))
		if va.Encode() == vb.Encode() {
			require.True(t, same, "one request, two fingerprints")
		} else if same {
			// Only the order within an array may go unnoticed.
			require.Contains(t, va.Encode(), "%5B%5D=")
		}
	})
}
