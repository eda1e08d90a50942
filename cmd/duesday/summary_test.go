package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
)

func ended(summary job.Summary, err error) *ending {
	e := &ending{period: testPeriod, summary: summary}
	e.judge(err)
	return e
}

func summaryOf(all charges.Tally, amounts ...charges.Money) job.Summary {
	return job.Summary{Period: testPeriod, All: &all, Money: amounts}
}

func TestEnding_isTextForPeople(t *testing.T) {
	t.Parallel()
	failed := exitcode.With(exitcode.Stopped, errors.New("the spend cap\nis reached"))
	for name, tc := range map[string]struct {
		end  *ending
		want string
	}{
		"nobody": {ended(summaryOf(charges.Tally{}), nil), "Duesday: period 2026-10 is settled: 0 customers, 0 charged."},
		"one": {ended(summaryOf(charges.Tally{Succeeded: 1}, charges.Money{Currency: "jpy", Succeeded: 1200}), nil),
			"Duesday: period 2026-10 is settled: 1 customer, 1 charged (¥1,200)."},
		"a million": {ended(summaryOf(charges.Tally{Succeeded: 998_000, Declined: 1_500, Rejected: 499, Processing: 1},
			charges.Money{Currency: "kwd", Succeeded: 5120}, charges.Money{Currency: "sek"}, charges.Money{Currency: "usd", Succeeded: 4_950_000_00}), nil),
			"Duesday: period 2026-10 is settled: 1,000,000 customers, 998,000 charged (KWD 5.120, $4,950,000.00), " +
				"1,500 declined, 499 rejected, 1 still processing at the bank."},
		"many currencies": {ended(summaryOf(charges.Tally{Succeeded: 6}, currencies("jpy", "krw", "vnd", "clp", "pyg", "xaf")...), nil),
			"Duesday: period 2026-10 is settled: 6 customers, 6 charged (¥1, ₩1, ₫1, CLP 1 and 2 more currencies)."},
		"five currencies": {ended(summaryOf(charges.Tally{Succeeded: 5}, currencies("jpy", "krw", "vnd", "clp", "pyg")...), nil),
			"Duesday: period 2026-10 is settled: 5 customers, 5 charged (¥1, ₩1, ₫1, CLP 1 and 1 more currency)."},
		"uncounted": {ended(job.Summary{}, nil), "Duesday: period 2026-10 is settled: done."},
		"before":    {ended(job.Summary{AlreadySettled: true}, nil), "Duesday: period 2026-10 was settled before, there was nothing to do."},
		"not the leader": {ended(job.Summary{}, fmt.Errorf("elect: %w", &leader.LeaseHeldError{Holder: "pod-7"})),
			"Duesday: pod-7 leads and bills period 2026-10, there was nothing to do here."},
		"without the lock": {ended(job.Summary{}, &leader.HeldError{Holder: "host/7"}),
			"Duesday: host/7 leads and bills period 2026-10, there was nothing to do here."},
		"unfinished": {ended(summaryOf(charges.Tally{Succeeded: 20, InDoubt: 8, Unclaimed: 22}), job.ErrStopped),
			"Duesday: period 2026-10 is not finished, run it again: 50 customers, 20 charged, 8 in doubt, 22 not yet charged. Exit code 1: told to stop"},
		"stopped": {ended(job.Summary{}, failed),
			"Duesday: period 2026-10 was stopped, a person must act. Exit code 3: the spend cap is reached"},
		"misconfigured": {ended(job.Summary{}, usage("--rate: want more")),
			"Duesday: period 2026-10 cannot be billed as configured, a person must act. Exit code 2: --rate: want more"},
	} {
		require.Equal(t, tc.want, tc.end.text(), name)
	}
}

func currencies(codes ...string) (all []charges.Money) {
	for _, code := range codes {
		all = append(all, charges.Money{Currency: code, Succeeded: 1})
	}
	return all
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 123456: "123,456", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		require.Equal(t, want, count(n))
	}
}

// Kubernetes cuts a longer message anywhere, and then it is no JSON any more.
func TestTerminationMessage_isShortAndValidWhateverHappens(t *testing.T) {
	t.Parallel()
	var every []charges.Money
	for i := range 150 {
		every = append(every, charges.Money{Currency: fmt.Sprintf("c%02d", i), Expected: 1 << 62, Cap: 1 << 62, Succeeded: 1 << 62, Declined: 1 << 62})
	}
	for name, text := range map[string]string{
		"nothing":      "",
		"long":         strings.Repeat("no answer ", 10_000),
		"runes":        strings.Repeat("𝄞é", 5_000),
		"escapes":      strings.Repeat("\x01<\x02&", 5_000),
		"invalid":      strings.Repeat("\xff\xfe", 5_000),
		"rtl":          strings.Repeat("שלום ", 3_000),
		"quotes":       strings.Repeat(`"\`, 5_000),
		"nothing much": "told to stop",
	} {
		for _, amounts := range [][]charges.Money{nil, every[:1], every} {
			path := filepath.Join(t.TempDir(), "termination-log")
			require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 9000)), 0o600))
			e := &ending{period: testPeriod + text, summary: summaryOf(charges.Tally{Succeeded: 1 << 40, Unclaimed: 1 << 40}, amounts...), leader: text}
			e.summary.ResendAt = time.Now()
			e.judge(errors.New(text))
			flags := tellFlags{termination: path}
			require.NoError(t, flags.terminate(e.told()))
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Less(t, len(content), terminationLimit, name)
			require.True(t, utf8.Valid(content), name)
			var got told
			require.NoError(t, json.Unmarshal(content, &got), "%s: %s", name, content)
			require.Equal(t, "unfinished", got.Outcome)
			require.Equal(t, 1, got.ExitCode)
			require.NotEmpty(t, got.Text)
			require.Equal(t, 1<<40, got.All.Succeeded)
			require.Len(t, amounts, len(got.Amounts)+got.LeftOut)
		}
	}
}

func TestTerminationMessage_isLeftWhereNobodyWantsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "termination-log")
	flags := tellFlags{termination: path}
	require.NoError(t, flags.terminate(told{Text: "x"}))
	require.NoFileExists(t, path)
	flags.termination = ""
	require.NoError(t, flags.terminate(told{Text: "x"}))
	flags.termination = filepath.Dir(path)
	require.ErrorContains(t, flags.terminate(told{Text: "x"}), "termination message")
}
