package charges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/duesday/duesday/internal/exitcode"
)

// Relation is a customers table or view that has been looked at: it is there
// and has the columns. Its name is quoted for SQL.
type Relation struct {
	name string
}

var customerColumns = []struct {
	name, want string
	types      []string
}{
	{"id", "text", textTypes},
	{"stripe_customer_id", "text", textTypes},
	{"payment_method", "text", textTypes},
	{"amount", "bigint, in the currency's smallest unit", []string{"bigint", "integer", "smallint"}},
	{"currency", "text", textTypes},
	{"active", "boolean", []string{"boolean"}},
}

var textTypes = []string{"text", "character varying", "character"}

// FindRelation looks name up in the database: a table, view or anything else
// that can be selected from, with a schema or on the search path. Errors exit
// with 2 and name the column at fault.
func FindRelation(ctx context.Context, db Querier, name string) (Relation, error) {
	bad := func(format string, args ...any) (Relation, error) {
		return Relation{}, exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("--customers %s: %s", name, fmt.Sprintf(format, args...)))
	}
	const find = `
		SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relkind IN ('r', 'v', 'm', 'p', 'f')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = to_regclass($1)`
	var (
		oid      uint32
		rel      Relation
		readable bool
	)
	err := db.QueryRow(ctx, find, name).Scan(&oid, &rel.name, &readable)
	var pgErr *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return bad("there is no such table or view")
	case errors.As(err, &pgErr) && (pgErr.Code == "42602" || pgErr.Code == "42601" || pgErr.Code == "0A000"):
		return bad("not a table's name, want schema.table")
	case err != nil:
		return Relation{}, fmt.Errorf("look up %s: %w", name, err)
	case !readable:
		return bad("it is neither a table nor a view")
	}

	const columns = `
		SELECT attname, format_type(atttypid, NULL)
		FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped`
	rows, err := db.Query(ctx, columns, oid)
	if err != nil {
		return Relation{}, fmt.Errorf("read the columns of %s: %w", name, err)
	}
	types := map[string]string{}
	var column, typ string
	if _, err := pgx.ForEachRow(rows, []any{&column, &typ}, func() error {
		types[column] = typ
		return nil
	}); err != nil {
		return Relation{}, fmt.Errorf("read the columns of %s: %w", name, err)
	}
	var problems []string
	for _, c := range customerColumns {
		typ, ok := types[c.name]
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("column %s is missing, want %s", c.name, c.want))
		case !slices.Contains(c.types, typ):
			problems = append(problems, fmt.Sprintf("column %s is %s, want %s", c.name, typ, c.want))
		}
	}
	if len(problems) > 0 {
		return bad("%s", strings.Join(problems, "; "))
	}
	return rel, nil
}

// selectDues selects what each active customer of the relation owes, with the
// columns of dues but for billing_period, and decides which can be sent.
// Its parameters are $n, the description, and $n+1, the Stripe method.
func (r Relation) selectDues(n int) string {
	return fmt.Sprintf(`
		SELECT id AS customer_id, stripe_customer_id, payment_method, amount, currency,
			description, stripe_method, %[1]s AS reject_code
		FROM (
			SELECT coalesce(id, '')::text AS id, stripe_customer_id::text, payment_method::text,
				amount::bigint, currency::text, $%[3]d::text AS description, $%[4]d::text AS stripe_method
			FROM %[2]s
			WHERE active
		) AS customer`, rejectSQL, r.name, n, n+1)
}

// activeIDs is a subquery of the ids that selectDues would give.
func (r Relation) activeIDs() string {
	return `(SELECT coalesce(id, '')::text FROM ` + r.name + ` WHERE active)`
}

// relationError says in a line what an error that came from reading the
// customers relation means. What the relation itself raises can never work as
// it is; a lost server may.
func relationError(r Relation, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fmt.Errorf("read %s: %w", r.name, err)
	}
	if pgErr.Code == "23505" && pgErr.ConstraintName == "dues_pkey" {
		return exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("--customers %s repeats an id, want one active row a customer: %s", r.name, pgErr.Detail))
	}
	err = fmt.Errorf("--customers %s: cannot read it: %s (SQLSTATE %s)", r.name, pgErr.Message, pgErr.Code)
	switch pgErr.Code[:2] {
	case "08", "25", "40", "53", "55", "57", "58", "XX": // the server's trouble, not the relation's
		return err
	}
	return exitcode.With(exitcode.Misconfigured, err)
}
