package charges_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
)

func TestParsePeriod(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]charges.Period{
		"2026-10": {Year: 2026, Month: time.October},
		"2026-01": {Year: 2026, Month: time.January},
		"2026-12": {Year: 2026, Month: time.December},
		"1000-01": {Year: 1000, Month: time.January},
		"9999-12": {Year: 9999, Month: time.December},
	} {
		got, err := charges.ParsePeriod(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got)
		require.Equal(t, s, got.String())
	}
}

func TestParsePeriod_refusesAnythingElse(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", " ", "2026", "2026-", "-10", "2026-13", "2026-00", "2026-1", "26-01", "02026-01", "0999-12", "0000-01",
		"2026-10 ", " 2026-10", "2026-10\n", "2026-10-01", "2026/10", "2026_10", "202610", "2026-1O", "+026-10",
		"-026-10", "2026--1", "2026-+1", "2026- 1", "Oct 2026", "٢٠٢٦-١٠", "２０２６-１０", "2026‐10", "2026-10\x00",
	} {
		got, err := charges.ParsePeriod(s)
		require.ErrorContains(t, err, "want YYYY-MM", "%q", s)
		require.Zero(t, got)
	}
}

func FuzzParsePeriod(f *testing.F) {
	for _, s := range []string{"2026-10", "2026-13", "", "9999-12", "2026-1", "２０２６-１０"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := charges.ParsePeriod(s)
		if err != nil {
			require.Zero(t, p)
			return
		}
		require.Equal(t, s, p.String())
		require.True(t, p.Month >= time.January && p.Month <= time.December)
		require.True(t, p.Year >= 1000 && p.Year <= 9999)
	})
}

func TestPeriodOf_dependsOnTheZone(t *testing.T) {
	t.Parallel()
	moment := time.Date(2026, 10, 31, 20, 0, 0, 0, time.UTC)
	for zone, want := range map[string]string{
		"Pacific/Auckland": "2026-11", "UTC": "2026-10", "Pacific/Honolulu": "2026-10",
	} {
		loc, err := time.LoadLocation(zone)
		require.NoError(t, err)
		require.Equal(t, want, charges.PeriodOf(moment, loc).String(), zone)
		require.Equal(t, want, charges.PeriodOf(moment.In(loc), loc).String(), zone)
	}
	honolulu, err := time.LoadLocation("Pacific/Honolulu")
	require.NoError(t, err)
	require.Equal(t, "2025-12", charges.PeriodOf(time.Date(2026, 1, 1, 9, 59, 59, 0, time.UTC), honolulu).String())
	require.Equal(t, "2026-01", charges.PeriodOf(time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC), honolulu).String())
}

// Postgres has a calendar of its own to compare with.
func TestPeriodOf_agreesWithTheCalendarInAllZones(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Connect(t)
	const months = `
		SELECT name, moment, extract(epoch FROM (moment AT TIME ZONE name) - (moment AT TIME ZONE 'UTC'))::int,
			to_char(moment AT TIME ZONE name, 'YYYY-MM')
		FROM pg_timezone_names,
			generate_series(timestamp '2023-01-01', '2026-12-01', '1 month') AS month,
			unnest('{-14h,-12h,-5h30m,-1h,-1s,0s,1s,1h,5h45m,12h}'::interval[]) AS around,
			LATERAL (SELECT (month AT TIME ZONE 'UTC') + around AS moment) AS m
		WHERE name !~ '^(posix|right)'`
	rows, err := conn.Query(t.Context(), months)
	require.NoError(t, err)
	var (
		name, month string
		moment      time.Time
		offset      int
		zones       = map[string]*time.Location{}
		compared    int
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &moment, &offset, &month}, func() error {
		loc, ok := zones[name]
		if !ok {
			loc, _ = time.LoadLocation(name) // nil: only Postgres has it
			zones[name] = loc
		}
		if loc == nil {
			return nil
		}
		if _, here := moment.In(loc).Zone(); here != offset {
			return nil // the two tz databases are of different editions
		}
		compared++
		if got := charges.PeriodOf(moment, loc).String(); got != month {
			t.Errorf("%s in %s: got %s, want %s", moment.UTC(), name, got, month)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, compared, 100_000)
}

func TestPeriod_Add(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		from   string
		months int
		want   string
	}{
		{"2026-10", 0, "2026-10"},
		{"2026-10", -1, "2026-09"},
		{"2026-01", -1, "2025-12"},
		{"2026-12", 1, "2027-01"},
		{"2026-10", 27, "2029-01"},
		{"2026-10", -34, "2023-12"},
		{"2026-10", 1200, "2126-10"},
		{"2024-02", 12, "2025-02"},
	} {
		from, err := charges.ParsePeriod(tc.from)
		require.NoError(t, err)
		require.Equal(t, tc.want, from.Add(tc.months).String(), "%s + %d", tc.from, tc.months)
	}
}

func drawPeriod(t *rapid.T) charges.Period {
	return charges.Period{
		Year:  rapid.IntRange(1000, 9999).Draw(t, "year"),
		Month: time.Month(rapid.IntRange(1, 12).Draw(t, "month")),
	}
}

func TestPeriod_properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, n := drawPeriod(t), rapid.IntRange(-24_000, 24_000).Draw(t, "n")
		require.Equal(t, p, p.Add(n).Add(-n))
		require.Equal(t, p.Add(n).Add(1), p.Add(n+1))
		require.Equal(t, n > 0, p.Before(p.Add(n)))
		require.Equal(t, n < 0, p.Add(n).Before(p))
		parsed, err := charges.ParsePeriod(p.String())
		require.NoError(t, err)
		require.Equal(t, p, parsed)
	})
}
