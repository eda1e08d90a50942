package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestReadOnlyRole_readsEverythingAndWritesNothing(t *testing.T) {
	t.Parallel()
	db := New(t)
	db.Exec(t, `
		CREATE SCHEMA duesday;
		CREATE TABLE duesday.before (id serial);
		CREATE TABLE public.other (id int)`)
	url := ReadOnlyRole(t, db)
	db.Exec(t, `CREATE TABLE duesday.after (id int)`)

	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })

	for _, sql := range []string{
		"SELECT * FROM duesday.before", "SELECT * FROM duesday.after", "SELECT * FROM public.other",
	} {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
	for _, sql := range []string{
		"INSERT INTO duesday.before DEFAULT VALUES",
		"UPDATE duesday.after SET id = 2",
		"DELETE FROM public.other",
		"SELECT * FROM public.other FOR UPDATE",
		"SELECT nextval('duesday.before_id_seq')",
		"CREATE TABLE public.mine (id int)",
		"CREATE TEMPORARY TABLE mine (id int)",
		"CREATE SCHEMA mine",
	} {
		_, err := conn.Exec(ctx, sql)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, sql)
		require.Equal(t, "42501", refused.Code, sql) // insufficient_privilege
	}
}
