package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/duesday/duesday/internal/exitcode"
)

// A session is one connection of the lock's own, never from a pool: a pool
// hands a connection on with its lock still held, and drops it at will.
type session struct {
	conn   *pgx.Conn
	dialer *dialer
	limit  time.Duration // for each step that has no statement to time it out
}

// connect opens a session. A database URL that cannot be parsed is an error
// with exit code 2.
func connect(ctx context.Context, cfg Config) (*session, error) {
	config, err := pgx.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, exitcode.With(exitcode.Misconfigured, fmt.Errorf("database URL: %w", err))
	}
	s := &session{dialer: newDialer(cfg.RetryPeriod, cfg.RenewDeadline), limit: cfg.RenewDeadline}
	config.DialFunc = s.dialer.dial

	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	s.conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		s.dialer.shut()
		return nil, fmt.Errorf("connect for the lock: %w", err)
	}
	return s, nil
}

// close ends the session, politely if that takes no time.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // the server ends the session either way
	s.dialer.shut()
	<-s.conn.PgConn().CleanupDone()
}

// prepare makes the server end the session when its client falls silent. The
// settings are made on the open connection, since poolers refuse them as
// startup parameters.
func (s *session) prepare(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()

	probe := max(1, int(math.Ceil(cfg.RetryPeriod.Seconds())))
	probes := max(1, int(math.Ceil(cfg.LeaseDuration.Seconds()))/probe-1)
	settings := [][2]string{
		{"application_name", cfg.application()},
		{"idle_session_timeout", milliseconds(cfg.LeaseDuration)},
		{"idle_in_transaction_session_timeout", milliseconds(cfg.LeaseDuration)},
		{"statement_timeout", milliseconds(cfg.quickTimeout())},
		{"tcp_keepalives_idle", strconv.Itoa(probe)},
		{"tcp_keepalives_interval", strconv.Itoa(probe)},
		{"tcp_keepalives_count", strconv.Itoa(probes)},
		{"tcp_user_timeout", milliseconds(cfg.LeaseDuration)},
		// A page's plan must not be the one that suited an empty table.
		{"plan_cache_mode", "force_custom_plan"},
	}
	for _, setting := range settings {
		if err := s.set(ctx, setting[0], setting[1]); err != nil {
			return err
		}
	}

	// A killed client's statement must not go on and pass for life. Servers
	// whose system cannot tell refuse the setting.
	err := s.set(ctx, "client_connection_check_interval", milliseconds(cfg.RetryPeriod/2))
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// set changes a setting for the session, if the server is new enough to know it.
func (s *session) set(ctx context.Context, name, value string) error {
	const setting = `SELECT set_config(name, $2, false) FROM pg_settings WHERE name = $1`
	if _, err := s.conn.Exec(ctx, setting, name, value); err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

func (c Config) application() string {
	name := "duesday " + c.Command + " " + c.Period
	if c.Shard != nil {
		name += " shard " + c.Shard.String()
	}
	return name
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}
