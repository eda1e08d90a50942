package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestPgBouncer_poolsInTheModeAskedFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode string
		// Two idle clients have one server session each, or share one that no
		// transaction needs.
		sessions int
	}{
		{mode: "session", sessions: 2},
		{mode: "transaction", sessions: 1},
	} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			db := New(t)
			url, err := PgBouncer(t, db, test.mode)
			require.NoError(t, err)

			pids := map[int]bool{}
			for range 2 {
				pids[backend(t, url)] = true
			}
			require.Len(t, pids, test.sessions)
		})
	}
}

// backend is the server process behind a client that stays connected.
func backend(t *testing.T, url string) int {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // 1.18 knows no prepared statements
	conn, err := pgx.ConnectConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	var pid int
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT pg_backend_pid()").Scan(&pid))
	return pid
}
