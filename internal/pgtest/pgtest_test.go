package pgtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNew_databasesAreIsolated(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	a.Exec(t, "CREATE TABLE only_a (id int); INSERT INTO only_a VALUES (1)")

	var found *string
	require.NoError(t, b.Connect(t).QueryRow(context.Background(), "SELECT to_regclass('only_a')::text").Scan(&found))
	require.Nil(t, found)
	var count int
	require.NoError(t, a.Pool(t).QueryRow(context.Background(), "SELECT count(*) FROM only_a").Scan(&count))
	require.Equal(t, 1, count)
}
