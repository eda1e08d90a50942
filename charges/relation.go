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
	case errors.As(err, &pgErr) && pgErr.Code == "42501":
		return bad("%s", pgErr.Message)
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

// storedID is the customer_id of a row: its id, but for one that is too long to
// be sent, and to be indexed. That one is rejected, and must not stop the rest.
const storedID = `CASE WHEN ` + tooLongSQL + `
	THEN left(id, 180) || '…' || encode(sha256(convert_to(id, 'UTF8')), 'hex') ELSE id END`

// selectDues selects what each active customer of the relation owes, with the
// columns of dues but for billing_period, with reject for the last of them.
// Its parameters are $n, the description, and $n+1, the Stripe method.
//
// The texts are compared byte by byte, whatever the collations of the relation
// are: to a case-insensitive one USD would pass for usd.
func (r Relation) selectDues(n int, reject string) string {
	return fmt.Sprintf(`
		SELECT %[5]s AS customer_id, stripe_customer_id, payment_method, amount, currency,
			description, stripe_method, %[1]s AS reject_code
		FROM (
			SELECT coalesce(id, '')::text COLLATE "C" AS id,
				stripe_customer_id::text COLLATE "C" AS stripe_customer_id,
				payment_method::text COLLATE "C" AS payment_method,
				amount::bigint AS amount, currency::text COLLATE "C" AS currency,
				$%[3]d::text AS description, $%[4]d::text AS stripe_method
			FROM %[2]s
			WHERE active
		) AS customer`, reject, r.name, n, n+1, storedID)
}

// activeIDs is a subquery with the column customer_id, of those that
// selectDues would give.
func (r Relation) activeIDs() string {
	return `(SELECT ` + storedID + ` AS customer_id
		FROM (SELECT coalesce(id, '')::text COLLATE "C" AS id FROM ` + r.name + ` WHERE active) AS customer)`
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
			// Not with Postgres's detail: this ends in a log, and that is an id.
			fmt.Errorf("--customers %s repeats an id, want one active row a customer: duesday plan shows which", r.name))
	}
	if pgErr.Code == "21000" && pgErr.Routine == "ExecOnConflictUpdate" { // a reopening's way to notice
		return exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("--customers %s repeats an id, want one active row a customer", r.name))
	}
	err = fmt.Errorf("--customers %s: cannot read it: %s (SQLSTATE %s)", r.name, pgErr.Message, pgErr.Code)
	switch pgErr.Code[:2] {
	case "08", "25", "40", "53", "55", "57", "58", "XX": // the server's trouble, not the relation's
		return err
	}
	return exitcode.With(exitcode.Misconfigured, err)
}
