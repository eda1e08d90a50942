package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/duesday/duesday/e2e/cluster"
	"github.com/duesday/duesday/internal/image"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

const (
	repository = ".."

	imageName = "localhost/duesday/duesday"
	imageTag  = "e2e"

	// pastPeriod is for tests that must not depend on the day they run.
	pastPeriod = "2025-01"
	stripeKey  = "rk_test_51Nx7mQ2eZvKYlo2C"
)

// loadDuesday builds the product's image and puts it on the shared cluster, on
// first use.
var loadDuesday = sync.OnceValue(func() error {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "duesday-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "duesday.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	config := image.Config{Tag: imageName + ":" + imageTag, Version: "e2e", Arch: runtime.GOARCH}
	if err := image.Build(ctx, repository, config, f); err != nil {
		return err
	}
	return shared.LoadImage(ctx, archive)
})

// A team has a namespace, a database, and an account at Stripe.
type team struct {
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	ns      string
	db      *pgtest.DB
	pool    *pgxpool.Pool
	sim     *stripesim.Server

	databaseURL, stripeURL string // as pods are to use them
}

func newTeam(t *testing.T) *team {
	t.Helper()
	require.NoError(t, loadDuesday())
	c, client := onCluster(t)
	b := &team{cluster: c, client: client, ns: newNamespace(t, client), db: pgtest.New(t), sim: stripesim.Start(t, stripesim.Options{})}
	b.pool = b.db.Pool(t)
	var err error
	b.databaseURL, err = c.ExposeURL(b.db.URL)
	require.NoError(t, err)
	b.stripeURL, err = c.ExposeURL(b.sim.URL)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			b.dump(t)
		}
	})
	return b
}

// secrets makes the two Secrets, as the manifests' README says.
func (b *team) secrets(t *testing.T) {
	t.Helper()
	b.kubectl(t, "create", "secret", "generic", "duesday-database", "--from-literal=url="+b.databaseURL)
	b.kubectl(t, "create", "secret", "generic", "duesday-stripe", "--from-literal=api-key="+stripeKey)
}

// An overlay is what a team changes in the manifests.
type overlay struct {
	schedule string // empty: suspended
	env      map[string]string
	base     string // folder in the repository; empty: manifests
}

// Leases that do not outlast the patience of tests.
func shortLease() map[string]string {
	return map[string]string{"DUESDAY_LEASE_DURATION": "3s", "DUESDAY_RENEW_DEADLINE": "2s", "DUESDAY_RETRY_PERIOD": "200ms"}
}

// ofPastPeriod is a suspended CronJob whose Jobs bill the same period whenever
// they run, fast, with short leases.
func ofPastPeriod() overlay {
	env := shortLease()
	env["DUESDAY_PERIOD"], env["DUESDAY_RATE"], env["DUESDAY_WORKERS"] = pastPeriod, "500", "8"
	return overlay{env: env}
}

// write writes the overlay over the real manifests, and returns its folder.
func (o overlay) write(t *testing.T, b *team) string {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Abs(filepath.Join(repository, cmp.Or(o.base, "manifests")))
	require.NoError(t, err)
	base, err = filepath.Rel(dir, base) // kustomize takes no absolute path
	require.NoError(t, err)
	type object = map[string]any
	env := []object{{"name": "STRIPE_API_BASE", "value": b.stripeURL}}
	for _, name := range slices.Sorted(maps.Keys(o.env)) {
		env = append(env, object{"name": name, "value": o.env[name]})
	}
	patch := object{
		"apiVersion": "batch/v1", "kind": "CronJob", "metadata": object{"name": "duesday"},
		"spec": object{
			"schedule": cmp.Or(o.schedule, "0 12 1 * *"), "suspend": o.schedule == "",
			"jobTemplate": object{"spec": object{"template": object{"spec": object{
				"containers": []object{{"name": "duesday", "env": env}},
			}}}},
		},
	}
	writeJSON(t, filepath.Join(dir, "cronjob.yaml"), patch)
	writeJSON(t, filepath.Join(dir, "kustomization.yaml"), object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"namespace": b.ns, "resources": []string{base},
		"images": []object{
			{"name": "duesday", "newName": imageName, "newTag": imageTag},
			{"name": "registry.example.com/billing/duesday", "newName": imageName, "newTag": imageTag}, // of the examples
		},
		"patches": []object{{"path": "cronjob.yaml"}},
	})
	return dir
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	content, err := json.Marshal(v)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// apply applies the real manifests under the overlay.
func (b *team) apply(t *testing.T, o overlay) {
	t.Helper()
	// A warning is Pod Security's, of a pod that it would not let in.
	b.kubectl(t, "apply", "-k", o.write(t, b), "--warnings-as-errors")
}

// install makes the Secrets, applies the manifests and waits for the schema.
func (b *team) install(t *testing.T, o overlay) {
	t.Helper()
	b.secrets(t)
	b.apply(t, o)
	b.awaitComplete(t, "duesday-migrate")
}

// installed is a team with so many customers, ready to bill the past period.
func installed(t *testing.T, customers int) *team {
	t.Helper()
	b := newTeam(t)
	b.install(t, ofPastPeriod())
	b.add(t, customers)
	return b
}

// kubectl runs kubectl in the team's namespace.
func (b *team) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	said, err := b.cluster.Kubectl(t.Context(), append([]string{"-n", b.ns}, args...)...)
	require.NoError(t, err)
	return said
}

// add gives the team customers, each with an amount of its own.
func (b *team) add(t *testing.T, n int) {
	t.Helper()
	b.db.Exec(t, `
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT 'cust_' || i, 'cus_' || i, 1000 + i, 'usd' FROM generate_series(1, $1) AS i`, n)
}

func (b *team) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// requireBilled compares the bank with who should have paid, each exactly once,
// and the ledger with the bank.
func (b *team) requireBilled(t *testing.T, n int) {
	t.Helper()
	want, got := map[string]int64{}, map[string]int64{}
	for i := 1; i <= n; i++ {
		want[fmt.Sprintf("cus_%d", i)] = int64(1000 + i)
	}
	paid, recorded := map[string]string{}, map[string]string{}
	for _, c := range b.sim.Succeeded() {
		require.NotContains(t, got, c.Customer, "charged twice")
		got[c.Customer], paid[c.IdempotencyKey] = c.Amount, c.ID
	}
	require.Equal(t, want, got)
	require.Zero(t, b.sim.Stats().IdempotencyErrors, "a key came with other parameters")
	rows, err := b.pool.Query(t.Context(), `SELECT idempotency_key, charge_id FROM duesday.charges WHERE status = 'succeeded'`)
	require.NoError(t, err)
	var key, id string
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error {
		recorded[key] = id
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, paid, recorded, "the ledger disagrees with the bank")
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status <> 'succeeded'`))
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods WHERE settled_at IS NULL`))
}

// settledAt is when all periods were settled; false: not yet.
func (b *team) settledAt(t *testing.T) (time.Time, bool) {
	t.Helper()
	var at *time.Time
	require.NoError(t, b.pool.QueryRow(t.Context(),
		`SELECT CASE WHEN bool_and(settled_at IS NOT NULL) THEN max(settled_at) END FROM duesday.periods`).Scan(&at))
	if at == nil {
		return time.Time{}, false
	}
	return *at, true
}

// hold makes the next n charges wait at Stripe, before they are made, until
// they are released; arrived returns once all of them are there.
func (b *team) hold(t *testing.T, n int) (arrived, release func()) {
	t.Helper()
	hung, released := make(chan struct{}, n), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	b.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == "POST" },
		slices.Repeat([]stripesim.Fault{{Kind: stripesim.HangUntilReleased, Release: released, Hung: hung}}, n)...)
	return func() {
		t.Helper()
		timeout := time.After(patience)
		for range n {
			select {
			case <-hung:
			case <-timeout:
				require.Fail(t, "no charge arrived at Stripe")
			}
		}
	}, release
}

// dump tells what is there when a test has failed.
func (b *team) dump(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the test's has ended
	defer cancel()
	for _, args := range [][]string{
		{"get", "jobs,pods,leases", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "-l", "app.kubernetes.io/name=duesday", "--prefix", "--tail=30", "--max-log-requests=30"},
	} {
		said, err := b.cluster.Kubectl(ctx, append([]string{"-n", b.ns}, args...)...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}
