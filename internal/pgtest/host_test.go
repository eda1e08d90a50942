package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestExternalHost_dropsWhatDeadProcessesOfThisMachineLeft(t *testing.T) {
	t.Parallel()
	server := NewServer(t)
	const dead = "999999999_1_00000000"
	leftover := databasePrefix + machine() + "_" + dead
	spared := []string{
		databasePrefix + "ffffff_" + dead,                       // another machine's
		databasePrefix + machine() + "_" + self() + "_00000000", // ours
		"customers",
	}
	for _, name := range append(spared, leftover) {
		require.NoError(t, execOn(server.URL("postgres"), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()))
	}

	h, err := externalHost(server.URL("postgres"))
	require.NoError(t, err)
	for _, name := range spared {
		require.NoError(t, execOn(server.URL(name), "SELECT 1"), name)
	}
	require.ErrorContains(t, execOn(server.URL(leftover), "SELECT 1"), "does not exist")

	var url string
	t.Run("one test", func(t *testing.T) {
		db := newDB(t, h)
		require.Nil(t, db.Server)
		db.Exec(t, "CREATE TABLE mine (id int)")
		url = db.URL
	})
	require.ErrorContains(t, execOn(url, "SELECT 1"), "does not exist", "dropped with its test")
}

func TestExternalHost_refusesWhatIsNoURL(t *testing.T) {
	t.Parallel()
	_, err := externalHost("host=localhost dbname=postgres")
	require.ErrorContains(t, err, "must be a postgres:// URL")
}
