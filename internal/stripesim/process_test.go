package stripesim_test

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

// TestProcess_isSteeredOverHTTP runs the simulator as a process and does each
// thing that [stripesim.Remote] can do.
func TestProcess_isSteeredOverHTTP(t *testing.T) {
	sim := stripesim.StartProcess(t, "-seed", "7", "-api-key", testKey)
	c := newClient(t, sim.URL)
	ctx := t.Context()
	charge := func(customer, key string) (*stripe.Charge, error) { return c.Charges.New(chargeParams(customer, key)) }

	require.NoError(t, c.Charges.List(&stripe.ChargeListParams{}).Err())
	looked := time.Now()
	_, err := charge("cus_1", "key-1")
	require.NoError(t, err)
	require.NoError(t, sim.Advance(ctx, 24*time.Hour))
	_, err = charge("cus_1", "key-1")
	require.NoError(t, err)
	bank, err := sim.Bank(ctx)
	require.NoError(t, err)
	require.Len(t, bank, 2, "the key was pruned")
	require.Equal(t, "2026-10", bank[1].Metadata["duesday_period"])
	require.WithinDuration(t, bank[0].Created.Add(24*time.Hour), bank[1].Created, time.Minute)
	tally, err := sim.Tally(ctx)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 2, 1}, []int{tally.Succeeded, tally.Customers, tally.MostOfOne, tally.Duplicates()})
	require.WithinRange(t, bank[0].Created, tally.First, tally.Last)
	require.False(t, tally.First.Before(looked), "looking is not charging")
	require.WithinRange(t, bank[1].Created, tally.First, tally.Last)

	require.NoError(t, sim.Fault(ctx, "cus_2", stripesim.Error500CommitLater, 1, 0))
	require.NoError(t, sim.Fault(ctx, "", stripesim.Latency, 1, time.Millisecond))
	_, err = charge("cus_2", "key-2")
	require.Equal(t, 500, stripeError(t, err).HTTPStatusCode)
	n, err := sim.RollForward(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	require.NoError(t, sim.SetAuth(ctx, http.StatusUnauthorized))
	_, err = charge("cus_3", "key-3")
	require.Equal(t, 401, stripeError(t, err).HTTPStatusCode)
	require.NoError(t, sim.SetAuth(ctx, 0))

	require.NoError(t, sim.Behave(ctx, "cus_4", stripesim.Behaviour{Pending: true}))
	require.NoError(t, sim.SetLatency(ctx, 20*time.Millisecond))
	begin := time.Now()
	ch, err := charge("cus_4", "key-4")
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), 20*time.Millisecond)
	require.Equal(t, stripe.ChargeStatusPending, ch.Status)
	n, err = sim.Resolve(ctx, "cus_4", true)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	planted, err := sim.Plant(ctx, stripesim.Charge{Customer: "cus_5", Amount: 1, Currency: "jpy"})
	require.NoError(t, err)
	bank, err = sim.Bank(ctx)
	require.NoError(t, err)
	require.Equal(t, planted.ID, bank[4].ID)

	stats, err := sim.Stats(ctx)
	require.NoError(t, err)
	require.Equal(t, 6, stats.Requests)
	require.Equal(t, 3, stats.ByEndpoint["POST /v1/charges 200"])
	requests, err := sim.Requests(ctx)
	require.NoError(t, err)
	require.Equal(t, "cus_4", requests[5].Params.Get("customer"))
	require.ErrorContains(t, stripesim.Remote{URL: sim.URL + "/v1"}.SetAuth(ctx, 0), "status 4")
}

func TestProcess_randomFaultsByFlag(t *testing.T) {
	sim := stripesim.StartProcess(t, "-fault", "503=1", "-max-faults-by-key", "1")
	c := newClient(t, sim.URL)
	_, err := c.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, 503, stripeError(t, err).HTTPStatusCode)
	_, err = c.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
}

// TestProcess_diesWithItsParent lets a shell start the simulator and kills the
// shell; nothing but the simulator itself can notice.
func TestProcess_diesWithItsParent(t *testing.T) {
	exe := t.TempDir() + "/stripesim"
	out, err := exec.Command("go", "build", "-o", exe, "./cmd/stripesim").CombinedOutput()
	require.NoError(t, err, string(out))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	shell := exec.Command("sh", "-c", exe+" & wait")
	shell.Stdout = w
	require.NoError(t, shell.Start())
	require.NoError(t, w.Close())
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "listening on http://127.0.0.1:"), line)

	require.NoError(t, shell.Process.Kill())
	_ = shell.Wait() // says that it was killed
	require.NoError(t, r.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = lines.ReadString('\n')
	require.ErrorContains(t, err, "EOF", "the last writer of the pipe has ended")
}
