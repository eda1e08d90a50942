package leader

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/kubesim"
)

const timestamp = "batch.kubernetes.io/cronjob-scheduled-timestamp"

func (b *leaseBundle) scheduledTime(t *testing.T) (time.Time, bool, error) {
	cluster := &Cluster{Config: b.Config("a"), Namespace: billing}
	return cluster.ScheduledTime(t.Context(), "duesday-29900159", 10*time.Second, 2*time.Second)
}

func TestScheduledTime_isTheJobsAnnotation(t *testing.T) {
	for _, written := range []string{"2026-10-31T23:59:00Z", "2026-11-01T00:59:00+01:00"} {
		t.Run(written, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				b.PutJob(billing, "duesday-29900159", map[string]string{timestamp: written})
				at, scheduled, err := b.scheduledTime(t)
				require.NoError(t, err)
				require.True(t, scheduled)
				require.True(t, at.Equal(time.Date(2026, 10, 31, 23, 59, 0, 0, time.UTC)), "%s", at)
			})
		})
	}
}

func TestScheduledTime_isNoneForAJobMadeByHand(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutJob(billing, "duesday-29900159", map[string]string{"cronjob.kubernetes.io/instantiate": "manual"})
		_, scheduled, err := b.scheduledTime(t)
		require.NoError(t, err)
		require.False(t, scheduled)
	})
}

func TestScheduledTime_outlastsAShortOutage(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutJob(billing, "duesday-29900159", map[string]string{timestamp: "2026-10-31T23:59:00Z"})
		ends := time.Now().Add(4 * time.Second)
		b.Faults(func(*http.Request) kubesim.Fault {
			if time.Now().Before(ends) {
				return kubesim.Fault{Before: kubesim.Forever}
			}
			return kubesim.Fault{}
		})
		_, scheduled, err := b.scheduledTime(t)
		require.NoError(t, err)
		require.True(t, scheduled)
	})
}

// An error, and never "no": the clock would bill another month.
func TestScheduledTime_isAnErrorWhenItCannotBeRead(t *testing.T) {
	for name, tc := range map[string]struct {
		fault kubesim.Fault
		at    string
		code  int
		want  string
	}{
		"the API hangs":   {fault: kubesim.Fault{Before: kubesim.Forever}, code: exitcode.Unfinished},
		"the API fails":   {fault: kubesim.Fault{Status: 500}, code: exitcode.Unfinished},
		"it is forbidden": {fault: kubesim.Fault{Status: 403}, code: exitcode.Misconfigured, want: "manifests/role.yaml"},
		"no such Job":     {code: exitcode.Misconfigured, want: "JOB_NAME"},
		"it is no time":   {at: "31 October", code: exitcode.Misconfigured, want: timestamp},
		"it is empty":     {at: " ", code: exitcode.Misconfigured, want: timestamp},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				if tc.at != "" {
					b.PutJob(billing, "duesday-29900159", map[string]string{timestamp: tc.at})
				}
				b.befall("a", "", tc.fault)
				began := time.Now()
				_, _, err := b.scheduledTime(t)
				require.Error(t, err)
				require.Equal(t, tc.code, exitcode.Of(err), "%v", err)
				require.ErrorContains(t, err, tc.want)
				require.LessOrEqual(t, time.Since(began), 15*time.Second)
			})
		})
	}
}
