package charges

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v76"
)

const (
	// countedUpTo is how far Search's total_count is accurate, by Stripe's word.
	countedUpTo = 10_000
	// checkTries is how often a question of the check is asked; after that it
	// goes without the answer.
	checkTries = 3
	// checkPatience is how long each question of it may take, in all its tries.
	checkPatience = 10 * time.Second
	// maxKeyAttempt bounds the attempts that a key is tried against to see
	// whose it is. Dunning ends at MaxAttempts; reopenings could pass that.
	maxKeyAttempt = 32
)

// UnknownAtStripe asks Stripe for charges of the period that this ledger never
// heard of, and returns the ids of those it found. There are none unless the
// ledger is an older one, restored from a backup: a claim is on record before
// its key is sent, so Stripe never knows a key that the newest ledger does not
// (decision 6).
//
// It counts an object only if its key is one that this ledger would send: that
// of a customer whom the period owes, under the ledger's own namespace. Others
// may use the same Stripe account. customers is asked who is owed where the
// period is not opened yet; nil: it is.
//
// Two questions are asked about each method. Search finds the period's own, but
// late, up to an hour in an outage, and not in every country. The newest page of
// the list of all lags never, but other traffic may have pushed them off it.
// Neither is complete; blind says which could not be asked, or not in full. That
// is for a warning: it must not keep a normal month from being billed.
func (l *Ledger) UnknownAtStripe(ctx context.Context, db Querier, s *Sender, methods []Method, customers *Relation) (unknown []string, blind []error, err error) {
	c := check{ledger: l, db: db, sender: s, customers: customers}
	for _, method := range methods {
		for _, ask := range []func(context.Context, Method) ([]string, error){c.search, c.newest} {
			found, err := ask(ctx, method)
			var local *ledgerError
			if errors.As(err, &local) {
				return nil, nil, err
			}
			if err != nil {
				blind = append(blind, err)
			}
			for _, id := range found {
				if !slices.Contains(unknown, id) {
					unknown = append(unknown, id)
				}
			}
		}
	}
	return unknown, blind, nil
}

type check struct {
	ledger    *Ledger
	db        Querier
	sender    *Sender
	customers *Relation
}

// ledgerError is one of the database, not of Stripe.
type ledgerError struct{ error }

func (e *ledgerError) Unwrap() error { return e.error }

// newest looks at the newest page of what Stripe has in all.
func (c *check) newest(ctx context.Context, method Method) ([]string, error) {
	var page []listed
	err := c.ask(ctx, func(ctx context.Context) (err error) {
		page, _, err = c.sender.Gateway.listPage(ctx, method, "", c.ledger.now().AddDate(-1, 0, 0), "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the newest %s: %w", method, err)
	}
	return c.unknown(ctx, page)
}

// search asks Search for the period. One page does nearly always: what a
// restored ledger has lost is the newest, and Search shows that first, though
// Stripe does not promise it. Therefore the count: if it is higher than the
// ledger's, the reason is looked for on further pages. By itself it proves
// nothing, since others may share the account.
func (c *check) search(ctx context.Context, method Method) ([]string, error) {
	page, err := c.searchPage(ctx, method, "")
	if err != nil {
		return nil, err
	}
	found, err := c.unknown(ctx, page.objects)
	if err != nil || len(found) > 0 || page.next == "" || page.total == 0 {
		return found, err
	}
	known, err := c.ledger.countSent(ctx, c.db, page.total)
	if err != nil {
		return nil, &ledgerError{err}
	}
	for seen := len(page.objects); page.total > known && page.next != "" && seen < countedUpTo; seen += len(page.objects) {
		next, err := c.searchPage(ctx, method, page.next)
		if err != nil {
			return nil, err
		}
		next.total = page.total
		page = next
		if found, err := c.unknown(ctx, page.objects); err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, nil
}

func (c *check) searchPage(ctx context.Context, method Method, page string) (out searched, err error) {
	query := fmt.Sprintf("metadata['%s']:'%s'", metaPeriod, c.ledger.Period)
	count := page == ""
	err = c.ask(ctx, func(ctx context.Context) (err error) {
		out, err = c.sender.Gateway.search(ctx, method, query, page, count)
		return err
	})
	var refused *stripe.Error
	if count && errors.As(err, &refused) && refused.HTTPStatusCode == http.StatusBadRequest {
		// Versions of the API since 2025-05-28 have no total_count.
		err = c.ask(ctx, func(ctx context.Context) (err error) {
			out, err = c.sender.Gateway.search(ctx, method, query, "", false)
			return err
		})
	}
	if err != nil {
		return searched{}, fmt.Errorf("search the %s: %w", method, err)
	}
	return out, nil
}

// ask asks Stripe, a few times where that may help.
func (c *check) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := c.sender.Pacer.Wait(ctx); err != nil {
			return struct{}{}, backoff.Permanent(err)
		}
		w := &wire{}
		err := question(withWire(ctx, w))
		if err == nil {
			return struct{}{}, nil
		}
		out := judgeError(err, w)
		if out.Throttled {
			c.sender.Pacer.Throttled()
		}
		// Both: its text for the log, which Stripe's own must not get into, and
		// its type for who asks.
		err = &askError{out.Err, err}
		if !out.Retry {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	},
		backoff.WithBackOff(&jitter{policy: c.sender.Retry, random: c.sender.Random}),
		backoff.WithMaxTries(checkTries),
		backoff.WithMaxElapsedTime(0))
	return err
}

type askError struct{ shown, cause error }

func (e *askError) Error() string { return e.shown.Error() }

func (e *askError) Unwrap() error { return e.cause }

// unknown returns the ids of those objects that the ledger should know and does
// not. A customer whose slot is paid counts as known: nothing more is sent.
//
// The ledger is read after Stripe was asked, so that another run's claims, which
// come before their charges, are seen.
func (c *check) unknown(ctx context.Context, page []listed) ([]string, error) {
	l := c.ledger
	var ids, owners, keys []string
	for _, o := range page {
		customer, key := o.metadata[metaCustomer], o.metadata[metaKey]
		if o.metadata[metaPeriod] != l.Period.String() || l.attemptOf(customer, key) == 0 {
			continue
		}
		ids, owners, keys = append(ids, o.id), append(owners, customer), append(keys, key)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	owed := `EXISTS (
		SELECT FROM duesday.dues AS due
		WHERE due.billing_period = $1 AND due.customer_id = at_stripe.customer_id)`
	if c.customers != nil {
		owed = `at_stripe.customer_id IN ` + c.customers.activeIDs()
	}
	find := `
		SELECT at_stripe.id
		FROM unnest($2::text[], $3::text[], $4::text[]) AS at_stripe (id, customer_id, idempotency_key)
		WHERE ` + owed + `
			AND NOT EXISTS (
				SELECT FROM duesday.charges AS slot
				WHERE slot.billing_period = $1 AND slot.customer_id = at_stripe.customer_id
					AND (slot.idempotency_key = at_stripe.idempotency_key OR slot.status = 'succeeded'))
			AND NOT EXISTS (
				SELECT FROM duesday.attempts AS attempt
				WHERE attempt.billing_period = $1 AND attempt.customer_id = at_stripe.customer_id
					AND attempt.idempotency_key = at_stripe.idempotency_key AND attempt.status <> 'succeeded')`
	rows, err := c.db.Query(ctx, find, l.Period.String(), ids, owners, keys)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		if c.customers != nil {
			err = relationError(*c.customers, err)
		}
		return nil, &ledgerError{fmt.Errorf("look charges of Stripe's up in the ledger: %w", err)}
	}
	return ids, nil
}

// attemptOf returns which attempt of the customer's the key is of; 0 if it is
// none of this ledger's keys.
func (l *Ledger) attemptOf(customer, key string) int {
	for attempt := 1; attempt <= maxKeyAttempt; attempt++ {
		if Key(customer, l.Period, l.Namespace, attempt) == key {
			return attempt
		}
	}
	return 0
}

// countSent counts the attempts of the period's slots: there are no more charges
// of them at Stripe. It stops at so many slots.
func (l *Ledger) countSent(ctx context.Context, db Querier, slots int) (n int, err error) {
	const count = `
		SELECT coalesce(sum(attempt), 0) FROM (
			SELECT attempt FROM duesday.charges WHERE billing_period = $1 LIMIT $2) AS slot`
	if err := db.QueryRow(ctx, count, l.Period.String(), slots).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the attempts: %w", err)
	}
	return n, nil
}

// Methods are the APIs at which charges of the period are looked for: charges,
// since an intent's charge carries its metadata, and intents where this run or
// the period's dues use them.
func (l *Ledger) Methods(ctx context.Context, db Querier, used Method) ([]Method, error) {
	const first = `
		SELECT coalesce((SELECT stripe_method FROM duesday.dues WHERE billing_period = $1 LIMIT 1), '')`
	var method string
	if err := db.QueryRow(ctx, first, l.Period.String()).Scan(&method); err != nil {
		return nil, fmt.Errorf("read the dues' method: %w", err)
	}
	if used == MethodPaymentIntents || Method(method) == MethodPaymentIntents {
		return []Method{MethodPaymentIntents, MethodCharges}, nil
	}
	return []Method{MethodCharges}, nil
}

// searched is a page of Search's.
type searched struct {
	objects []listed
	next    string // the page after it; empty: none
	total   int    // 0: not counted
}

// search asks Search for a page of at most 100.
func (g *Gateway) search(ctx context.Context, method Method, query, page string, count bool) (searched, error) {
	params := stripe.SearchParams{Context: ctx, Query: query, Limit: stripe.Int64(100), Single: true}
	var expand []*string
	if count {
		expand = []*string{stripe.String("total_count")}
	}
	var (
		out  searched
		meta stripe.SearchMeta
		none bool
	)
	if method == MethodPaymentIntents {
		it := g.api.PaymentIntents.Search(&stripe.PaymentIntentSearchParams{SearchParams: params, Expand: expand, Page: optional(page)})
		if err := it.Err(); err != nil {
			return searched{}, err
		}
		result := it.PaymentIntentSearchResult()
		meta, none = result.SearchMeta, result.Data == nil || slices.Contains(result.Data, nil)
		for _, pi := range result.Data {
			if pi != nil {
				out.objects = append(out.objects, listedIntent(pi))
			}
		}
	} else {
		it := g.api.Charges.Search(&stripe.ChargeSearchParams{SearchParams: params, Expand: expand, Page: optional(page)})
		if err := it.Err(); err != nil {
			return searched{}, err
		}
		result := it.ChargeSearchResult()
		meta, none = result.SearchMeta, result.Data == nil || slices.Contains(result.Data, nil)
		for _, ch := range result.Data {
			if ch != nil {
				out.objects = append(out.objects, listedCharge(ch))
			}
		}
	}
	if none || meta.URL == "" {
		return searched{}, errNoList
	}
	if meta.HasMore && meta.NextPage != nil {
		out.next = *meta.NextPage
	}
	if meta.TotalCount != nil {
		out.total = int(*meta.TotalCount)
	}
	return out, nil
}
