package stripesim_test

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/duesday/duesday/internal/stripesim"
)

// startMock runs Stripe's own stripe-mock, which knows the API's shapes from
// Stripe's OpenAPI file and nothing else.
func startMock(t *testing.T) *client.API {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "stripe-mock")
	out, err := exec.Command("go", "build", "-o", exe, "github.com/stripe/stripe-mock").CombinedOutput()
	require.NoError(t, err, string(out))
	// Without -https-addr it would listen on all interfaces, too.
	cmd := exec.Command(exe, "-http-addr", "127.0.0.1:0", "-https-addr", "127.0.0.1:0")
	cmd.SysProcAttr = stripesim.DieWithParent()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	drained := make(chan struct{})
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		<-drained
		_ = cmd.Wait() // says that it was killed
	})
	lines := bufio.NewReader(stdout)
	url := ""
	for url == "" {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		if addr, ok := strings.CutPrefix(strings.TrimSpace(line), "Listening for HTTP at address: "); ok {
			url = "http://" + addr
		}
	}
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, lines)
	}()
	return newClient(t, url)
}

// TestShapes sends each request to stripe-mock and to the simulator. Both must
// agree whether it is well-formed, and their answers decode to the same types.
func TestShapes(t *testing.T) {
	mock, sim := startMock(t), start(t, stripesim.Options{})
	// Identifiers that both know: stripe-mock knows any.
	ch := sim.sim.Plant(stripesim.Charge{Customer: "cus_1", Amount: 100, Currency: "usd"})
	open := sim.sim.Plant(stripesim.Charge{Kind: stripesim.KindIntent, Customer: "cus_1", Amount: 100, Currency: "usd",
		Status: stripesim.StatusRequiresPaymentMethod})

	charge := func(change func(*stripe.ChargeParams)) func(*client.API) (any, error) {
		return func(c *client.API) (any, error) {
			p := chargeParams("cus_1", "key-"+t.Name())
			p.IdempotencyKey = nil // the client makes one up
			change(p)
			out, err := c.Charges.New(p)
			return out.Object, err
		}
	}
	intent := func(change func(*stripe.PaymentIntentParams)) func(*client.API) (any, error) {
		return func(c *client.API) (any, error) {
			p := intentParams("cus_1", "")
			p.IdempotencyKey = nil
			change(p)
			out, err := c.PaymentIntents.New(p)
			return out.Object, err
		}
	}
	list := func(change func(*stripe.ChargeListParams)) func(*client.API) (any, error) {
		return func(c *client.API) (any, error) {
			p := &stripe.ChargeListParams{Customer: stripe.String("cus_1")}
			p.Single = true
			change(p)
			it := c.Charges.List(p)
			if it.Err() != nil {
				return nil, it.Err()
			}
			return it.ChargeList().Data[0].Object, nil
		}
	}
	tests := []struct {
		name string
		ok   bool
		send func(*client.API) (any, error)
	}{
		{"charge", true, charge(func(*stripe.ChargeParams) {})},
		{"charge a given source", true, charge(func(p *stripe.ChargeParams) { _ = p.SetSource("card_1") })},
		{"charge, unknown parameter", false, charge(func(p *stripe.ChargeParams) { p.AddExtra("bogus", "1") })},
		{"charge, text for an amount", false, charge(func(p *stripe.ChargeParams) { p.Amount = nil; p.AddExtra("amount", "ten") })},
		{"charge, fraction for an amount", false, charge(func(p *stripe.ChargeParams) { p.Amount = nil; p.AddExtra("amount", "10.5") })},
		{"charge, metadata not a map", false, charge(func(p *stripe.ChargeParams) { p.Metadata = nil; p.AddExtra("metadata", "x") })},
		{"charge, map for a description", false, charge(func(p *stripe.ChargeParams) { p.Description = nil; p.AddExtra("description[a]", "x") })},
		{"intent", true, intent(func(*stripe.PaymentIntentParams) {})},
		{"intent, default source", true, intent(func(p *stripe.PaymentIntentParams) { p.PaymentMethod = nil })},
		{"intent, unknown parameter", false, intent(func(p *stripe.PaymentIntentParams) { p.AddExtra("source", "card_1") })},
		{"intent, text for a boolean", false, intent(func(p *stripe.PaymentIntentParams) { p.Confirm = nil; p.AddExtra("confirm", "yes") })},
		{"intent, no currency", false, intent(func(p *stripe.PaymentIntentParams) { p.Currency = nil })},
		{"intent, no amount", false, intent(func(p *stripe.PaymentIntentParams) { p.Amount = nil })},
		{"get a charge", true, func(c *client.API) (any, error) {
			out, err := c.Charges.Get(ch.ID, nil)
			return out.Object, err
		}},
		{"get an intent", true, func(c *client.API) (any, error) {
			out, err := c.PaymentIntents.Get(open.ID, nil)
			return out.Object, err
		}},
		{"cancel an intent, reason unknown", false, func(c *client.API) (any, error) {
			out, err := c.PaymentIntents.Cancel(open.ID, &stripe.PaymentIntentCancelParams{CancellationReason: stripe.String("whim")})
			return out.Object, err
		}},
		{"cancel an intent", true, func(c *client.API) (any, error) {
			out, err := c.PaymentIntents.Cancel(open.ID, &stripe.PaymentIntentCancelParams{CancellationReason: stripe.String("abandoned")})
			return out.Object, err
		}},
		{"list", true, list(func(p *stripe.ChargeListParams) {
			p.Limit = stripe.Int64(100)
			p.CreatedRange = &stripe.RangeQueryParams{GreaterThanOrEqual: 1}
		})},
		{"list, unknown parameter", false, list(func(p *stripe.ChargeListParams) { p.Filters.AddFilter("status", "", "succeeded") })},
		{"list, text for a limit", false, list(func(p *stripe.ChargeListParams) { p.Filters.AddFilter("limit", "", "many") })},
		{"list, text for a time", false, list(func(p *stripe.ChargeListParams) { p.Filters.AddFilter("created", "gte", "today") })},
		{"list intents", true, func(c *client.API) (any, error) {
			p := &stripe.PaymentIntentListParams{Customer: stripe.String("cus_1")}
			p.Single = true
			it := c.PaymentIntents.List(p)
			if it.Err() != nil {
				return nil, it.Err()
			}
			return it.PaymentIntentList().Data[0].Object, nil
		}},
		{"search", true, func(c *client.API) (any, error) {
			p := &stripe.ChargeSearchParams{}
			p.Query, p.Single = "metadata['duesday_period']:'2026-10'", true
			it := c.Charges.Search(p)
			if it.Err() != nil {
				return nil, it.Err()
			}
			return it.ChargeSearchResult().Data[0].Object, nil
		}},
		{"search without query", false, func(c *client.API) (any, error) {
			return nil, c.Charges.Search(&stripe.ChargeSearchParams{}).Err()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mockKind, mockErr := tt.send(mock)
			simKind, simErr := tt.send(sim.stripe)
			if tt.ok {
				require.NoError(t, mockErr, "stripe-mock")
				require.NoError(t, simErr, "simulator")
				require.Equal(t, mockKind, simKind)
				return
			}
			require.Equal(t, 400, stripeError(t, mockErr).HTTPStatusCode, "stripe-mock")
			require.Equal(t, 400, stripeError(t, simErr).HTTPStatusCode, "simulator")
			require.Equal(t, stripe.ErrorTypeInvalidRequest, stripeError(t, simErr).Type)
		})
	}
}
