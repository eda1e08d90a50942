package leader

import (
	"context"
	"errors"
	"fmt"

	"github.com/duesday/duesday/internal/exitcode"
)

var errPooled = exitcode.With(exitcode.Misconfigured, errors.New(
	"DATABASE_URL goes through a connection pooler in transaction mode, where session locks do not work: "+
		"connect to Postgres directly, or set pool_mode = session for this database"))

// refusePooler returns an error with exit code 2 if the session has no backend
// of its own. Two connections that are open at once and report the same
// backend, or one that reports two, prove it. It uses the simple protocol only,
// for prepared statements may fail behind the very pooler it looks for.
//
// What a busy pooler may hide from it here, the first beats will show.
func refusePooler(ctx context.Context, cfg Config, s *session) error {
	const rounds = 4
	other, err := connect(ctx, cfg)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer other.close()

	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	var first [2]string
	for round := range rounds {
		for i, s := range []*session{s, other} {
			pid, err := s.backend(ctx)
			if err != nil {
				return fmt.Errorf("look for a pooler: %w", err)
			}
			if round == 0 {
				first[i] = pid
			}
			if first[i] != pid || first[0] == first[1] {
				return errPooled
			}
		}
	}
	return nil
}

func (s *session) backend(ctx context.Context) (string, error) {
	results, err := s.conn.PgConn().Exec(ctx, `SELECT pg_backend_pid()`).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return "", errors.New("pg_backend_pid() gave no row")
	}
	return string(results[0].Rows[0][0]), nil
}
