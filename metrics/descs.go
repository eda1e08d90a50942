package metrics

import "github.com/prometheus/client_golang/prometheus"

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("duesday_"+name, help, labels, nil)
}

// The state's. docs/metrics.md says the same, and a test compares the two.
type stateDescs struct {
	build, periods, lastSettled, nextDue *prometheus.Desc
	inDoubt, oldest                      *prometheus.Desc
	expected, cap, claimed               *prometheus.Desc
}

func newStateDescs() stateDescs {
	return stateDescs{
		build: desc("build_info", "1, with the version of the binary that told the state last.", "version"),
		periods: desc("periods", "Billing periods by state: open (not all is settled), settled, or missing. "+
			"Missing are the months from the first one billed to before the current one that no run has opened.", "state"),
		lastSettled: desc("last_settled_period_timestamp_seconds", "Begin (UTC) of the newest settled billing period, as Unix time."),
		nextDue: desc("next_period_due_timestamp_seconds", "Since when the first month that no run has opened can be billed, as Unix time: "+
			"the begin of that month in the run's time zone, moved by its period offset. In the future if no month is missing."),
		inDoubt: desc("in_doubt_slots", "Slots in doubt, of all periods, when a run last began or ended."),
		oldest:  desc("in_doubt_oldest_timestamp_seconds", "When the oldest slot in doubt, of all periods, was claimed, as Unix time; 0 if none is in doubt."),

		expected: desc("spend_expected", "What the newest billing period is expected to bring, in the currency's smallest unit.", "currency"),
		cap:      desc("spend_cap", "What the newest billing period may charge at most, in the currency's smallest unit.", "currency"),
		claimed:  desc("spend_claimed", "What counts against the newest billing period's spend cap, in the currency's smallest unit.", "currency"),
	}
}

func (d *stateDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.build, d.periods, d.lastSettled, d.nextDue, d.inDoubt, d.oldest, d.expected, d.cap, d.claimed,
	}
}

// The process's own, of which the rest are counters.
type runDescs struct {
	start, dayEnd, expectedEnd, left, rate *prometheus.Desc
	slots, amount                          *prometheus.Desc
}

func newRunDescs() runDescs {
	return runDescs{
		start: desc("run_start_timestamp_seconds", "When the run began, as Unix time."),
		dayEnd: desc("run_day_end_timestamp_seconds", "When the day on which the run began ends in the run's time zone, as Unix time. "+
			"Only while it runs."),
		expectedEnd: desc("run_expected_end_timestamp_seconds", "When the run ends at its present pace, as Unix time. Only while it runs, and while it gets on."),
		left:        desc("run_dues_left", "Dues that the run still has before it. Only while it runs."),
		rate:        desc("run_charges_per_second", "Results recorded a second in the last half minute. Only while it runs."),
		slots:       desc("slots", "Dues of the period that the run works on, by status; those of earlier runs too.", "status"),
		amount: desc("amount", "Amounts of the period that the run works on, by the status of their dues, in the currency's smallest unit.",
			"status", "currency"),
	}
}

func (d *runDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.start, d.dayEnd, d.expectedEnd, d.left, d.rate, d.slots, d.amount}
}
