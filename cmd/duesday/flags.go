package main

import (
	"math/big"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/leader"
)

// periodFlags say which period is meant.
type periodFlags struct {
	period    string
	offset    int
	zone      string
	namespace string
}

func (f *periodFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.period, "period", "", "billing period `YYYY-MM` (default: the month that it is now in --time-zone)")
	f.addClock(flags)
	flags.StringVar(&f.namespace, "key-namespace", "monthly-billing", "`literal` in every idempotency key; no colon")
}

func (f *periodFlags) addClock(flags *pflag.FlagSet) {
	flags.IntVar(&f.offset, "period-offset", 0, "`months` to add where --period is not given; -1 bills in arrears")
	flags.StringVar(&f.zone, "time-zone", "UTC", "IANA `name` of the zone whose calendar decides the month")
}

// ledger checks the flags and returns the period's ledger.
func (f *periodFlags) ledger(now time.Time) (charges.Ledger, error) {
	var none charges.Ledger
	if err := charges.ValidateNamespace(f.namespace); err != nil {
		return none, usage("--key-namespace: %w", err)
	}
	period, err := f.byClock(now)
	if err != nil {
		return none, err
	}
	if f.period != "" {
		if period, err = charges.ParsePeriod(f.period); err != nil {
			return none, usage("--period: %w", err)
		}
	}
	return charges.Ledger{Period: period, Namespace: f.namespace}, nil
}

// byClock is the month that it is now in the zone, moved by the offset.
func (f *periodFlags) byClock(now time.Time) (charges.Period, error) {
	zone, err := f.location()
	if err != nil {
		return charges.Period{}, err
	}
	if f.offset < -1200 || f.offset > 1200 {
		return charges.Period{}, usage("--period-offset %d: want months, from -1200 to 1200", f.offset)
	}
	return charges.PeriodOf(now, zone).Add(f.offset), nil
}

func (f *periodFlags) location() (*time.Location, error) {
	zone, err := time.LoadLocation(f.zone)
	if err != nil || f.zone == "" || f.zone == "Local" {
		return nil, usage("--time-zone %q: want an IANA name, like Europe/Berlin", f.zone)
	}
	return zone, nil
}

// refuseFuture refuses a --period that has not begun: most likely a slip, and
// charging early cannot be taken back. A month in advance by --period-offset is
// meant.
func (f *periodFlags) refuseFuture(now time.Time) error {
	period, err := charges.ParsePeriod(f.period)
	if err != nil { // none was named
		return nil
	}
	this, err := f.byClock(now)
	if err != nil {
		return err
	}
	if f.offset < 0 {
		this = this.Add(-f.offset)
	}
	if this.Before(period) {
		return usage("--period %s has not begun, it is %s in %s: say --allow-future if that is meant", period, this, f.zone)
	}
	return nil
}

// openingFlags say what a period is opened with.
type openingFlags struct {
	customers   string
	method      string
	description string
	capFactor   string
	allowEmpty  bool
	guards      charges.Guards
}

func (f *openingFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.customers, "customers", "duesday.customers",
		"`table` or view with the columns id, stripe_customer_id, payment_method, amount, currency, active")
	flags.StringVar(&f.method, "stripe-method", "charges", "`api` to charge with: charges, or payment_intents (off-session, confirmed)")
	flags.StringVar(&f.description, "description", "Billing period {period}", "`text` on each charge; {period} is replaced")
	flags.StringVar(&f.capFactor, "spend-cap-factor", "1.10", "spend cap = expected total × `factor`, per currency, fixed at opening")
	flags.BoolVar(&f.allowEmpty, "allow-empty", false, "let a period without any active customer be opened, and settled")
	flags.BoolVar(&f.guards.AllowPast, "allow-past", false, "let --period name a month before the first that was ever billed")
	flags.StringVar(&f.guards.MaxGrowth, "max-growth", "2",
		"refuse to open if a currency's expected total is more than `factor` times that of the last settled period, if that had 20 dues; 0 for any")
	amountsVar(flags, &f.guards.MaxAmount, "max-amount", "refuse to open if a single amount is above these, like `usd=50000,jpy=90000` in smallest units")
	flags.StringVar(&f.guards.MaxRejected, "max-rejected", "1%", "refuse to open if more than this `number` of dues would be rejected, or dropped by --reopen; a percentage always lets 3 through")
	flags.BoolVar(&f.guards.UniqueStripeCustomers, "unique-stripe-customers", false, "refuse to open if a Stripe customer is behind two active rows")
}

func (f *openingFlags) opening(period charges.Period) (charges.Opening, error) {
	var none charges.Opening
	method, err := charges.ParseMethod(f.method)
	if err != nil {
		return none, usage("--stripe-method %w", err)
	}
	if err := checkCapFactor(f.capFactor); err != nil {
		return none, err
	}
	if err := f.guards.Check(); err != nil {
		return none, usage("%w", err)
	}
	if strings.TrimSpace(f.customers) == "" {
		return none, usage("--customers: want a table or view, like billing.customers, got nothing")
	}
	description := strings.ReplaceAll(f.description, "{period}", period.String())
	if len(description) > 500 || strings.ContainsRune(description, 0) || strings.TrimSpace(description) == "" {
		return none, usage("--description: want 1 to 500 bytes of text, got %d", len(description))
	}
	return charges.Opening{
		Description: description,
		Method:      method,
		CapFactor:   f.capFactor,
		AllowEmpty:  f.allowEmpty,
		Guards:      f.guards,
		Timeout:     openTimeout,
	}, nil
}

// checkCapFactor reads the factor as the decimal that Postgres will multiply
// with, so that no binary fraction comes in between.
func checkCapFactor(s string) error {
	for _, r := range s {
		if (r < '0' || r > '9') && r != '.' {
			return usage("--spend-cap-factor %q: want a decimal, like 1.10", s)
		}
	}
	factor, ok := new(big.Rat).SetString(s)
	if !ok || len(s) > 12 {
		return usage("--spend-cap-factor %q: want a decimal, like 1.10", s)
	}
	if factor.Cmp(big.NewRat(1, 1)) < 0 || factor.Cmp(big.NewRat(1000, 1)) > 0 {
		return usage("--spend-cap-factor %s: want at least 1 and at most 1000; below 1 not even the expected total could be charged", s)
	}
	return nil
}

// sendingFlags say how fast Stripe is asked.
type sendingFlags struct {
	rate    float64
	workers int
}

func (f *sendingFlags) add(flags *pflag.FlagSet) {
	flags.Float64Var(&f.rate, "rate", 20, "requests to Stripe, at most, `per-second`; its own limit is 25 per endpoint unless raised")
	flags.IntVar(&f.workers, "workers", 16, "`number` of charges in flight, at most")
}

func (f *sendingFlags) check() error {
	if !(f.rate > 0 && f.rate <= 1e6) {
		return usage("--rate %v: want more than 0 and at most 1000000 requests a second", f.rate)
	}
	if f.workers < 1 || f.workers > 1000 {
		return usage("--workers %d: want from 1 to 1000", f.workers)
	}
	return nil
}

// pageSize claims about two seconds' work at once.
func (f *sendingFlags) pageSize() int {
	return min(max(int(2*f.rate), f.workers), 2000)
}

// leaderFlags say who may lead, and how long silence may last.
type leaderFlags struct {
	elect                                    bool
	leaseName, leaseNamespace                string
	leaseDuration, renewDeadline, retryEvery time.Duration
}

func (f *leaderFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.elect, "leader-elect", true, "elect the leader by a Kubernetes Lease first; =false outside Kubernetes, where the advisory lock alone decides")
	flags.StringVar(&f.leaseName, "lease-name", "duesday", "`name` of the Lease")
	flags.StringVar(&f.leaseNamespace, "lease-namespace", "", "`namespace` of the Lease (default: the pod's)")
	f.addTimes(flags)
}

func (f *leaderFlags) addTimes(flags *pflag.FlagSet) {
	flags.DurationVar(&f.leaseDuration, "lease-duration", 15*time.Second, "`duration` for which a silent leader is waited for before another takes over")
	flags.DurationVar(&f.renewDeadline, "renew-deadline", 10*time.Second, "`duration` for which a leader that cannot prove that it leads goes on")
	flags.DurationVar(&f.retryEvery, "retry-period", 2*time.Second, "`duration` at most between a leader's signs of life, and between a candidate's tries")
}

// lockConfig is how the period's advisory lock is taken.
func (f *leaderFlags) lockConfig(url, command string, l charges.Ledger, log *zap.Logger) leader.Config {
	return leader.Config{
		DatabaseURL: url,
		LockID:      charges.LockID(l.Namespace, l.Period.String()),
		Command:     command, Period: l.Period.String(), Holder: holder(),
		LeaseDuration: f.leaseDuration, RenewDeadline: f.renewDeadline, RetryPeriod: f.retryEvery,
		StatementTimeout: openTimeout,
		Log:              log,
	}
}

func (f *leaderFlags) check() error {
	switch {
	case f.retryEvery < 10*time.Millisecond:
		return usage("--retry-period %s: want at least 10ms", f.retryEvery)
	case f.renewDeadline <= f.retryEvery:
		return usage("--renew-deadline %s: want more than --retry-period, %s", f.renewDeadline, f.retryEvery)
	case f.leaseDuration <= f.renewDeadline:
		return usage("--lease-duration %s: want more than --renew-deadline, %s", f.leaseDuration, f.renewDeadline)
	case f.leaseDuration < time.Second:
		return usage("--lease-duration %s: want at least 1s", f.leaseDuration)
	}
	return nil
}

type logFlags struct {
	format string
	debug  bool
}

func (f *logFlags) add(flags *pflag.FlagSet, terminal bool) {
	usual := "json"
	if terminal {
		usual = "console"
	}
	flags.StringVar(&f.format, "log-format", usual, "`format` of the log on stderr: json or console")
	flags.BoolVar(&f.debug, "debug", false, "log each send that came to nothing, too")
}

func (f *logFlags) check() error {
	if f.format != "json" && f.format != "console" {
		return usage("--log-format %q: want json or console", f.format)
	}
	return nil
}
