package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServer_keepsCommittedDataThroughEveryEnd(t *testing.T) {
	t.Parallel()
	server := NewServer(t)
	db := server.NewDB(t)
	db.Exec(t, "CREATE TABLE kept (step text)")

	for _, end := range []struct {
		name string
		down func() error
	}{
		{name: "restart fast", down: func() error { return server.Restart(Fast) }},
		{name: "restart immediate", down: func() error { return server.Restart(Immediate) }},
		{name: "down", down: func() error { return server.Down(Fast) }},
		{name: "crash", down: server.Crash},
	} {
		db.Exec(t, "INSERT INTO kept VALUES ($1)", end.name)
		require.NoError(t, end.down(), end.name)
		if !server.Running() {
			require.Error(t, execOn(db.URL, "SELECT 1"), end.name)
			require.NoError(t, server.Restart(Fast), end.name)
		}
		var found bool
		err := db.Connect(t).QueryRow(context.Background(),
			"SELECT EXISTS (SELECT FROM kept WHERE step = $1)", end.name).Scan(&found)
		require.NoError(t, err, end.name)
		require.True(t, found, end.name)
	}
}

func TestServer_stopLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		down func(*Server) error
	}{
		{name: "running", down: func(*Server) error { return nil }},
		{name: "down", down: func(s *Server) error { return s.Down(Fast) }},
		{name: "crashed", down: (*Server).Crash},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, err := StartServer(context.Background())
			require.NoError(t, err)
			require.NoError(t, test.down(server))
			require.NoError(t, server.Stop(Immediate))
			require.NoDirExists(t, server.Dir())
			require.Empty(t, processesOf(t, server.Dir()))
		})
	}
}

func TestServer_takesSettings(t *testing.T) {
	t.Parallel()
	db := New(t, Set("fsync", "on"), Set("max_connections", "17"))
	conn := db.Connect(t)
	for name, want := range map[string]string{"fsync": "on", "max_connections": "17", "full_page_writes": "off"} {
		var got string
		require.NoError(t, conn.QueryRow(context.Background(), "SELECT current_setting($1)", name).Scan(&got))
		require.Equal(t, want, got, name)
	}
}

func TestServer_saysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	_, err := StartServer(context.Background(), Set("no_such_setting", "on"))
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such_setting"`)
}

func TestServer_neverRunsAsRoot(t *testing.T) {
	t.Parallel()
	server := NewServer(t)
	info, err := os.Stat(filepath.Join(server.Dir(), "data", "postmaster.pid"))
	require.NoError(t, err)
	require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid)
}
