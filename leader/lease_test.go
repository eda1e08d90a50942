package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/kubesim"
)

func TestAcquireLease_takesAFreeLeaseAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		began := time.Now()
		lease := b.lead(t, "a")
		require.Zero(t, time.Since(began))
		require.Equal(t, "a", b.holder(t))
		requireLeads(t, lease)
	})
}

func TestLease_isRenewedUntilItIsReleased(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		advance(time.Hour)
		requireLeads(t, lease)
		require.WithinDuration(t, time.Now(), b.Lease(billing, duesday).Spec.RenewTime.Time, 2*time.Second)
	})
}

func TestAcquireLease_isLostOnceTheHolderIsSeenToRenew(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.lead(t, "a")
		began := time.Now()
		_, err := AcquireLease(t.Context(), b.config(t, "b"))
		var held *LeaseHeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, LeaseHeldError{Holder: "a", Lease: "billing/duesday"}, *held)
		require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond, "lost before it renewed twice")
		require.Less(t, time.Since(began), 5*time.Second)
		require.Equal(t, "a", b.holder(t))
	})
}

// One Lease serves all periods: whoever would bill another one has not lost, or
// that period stayed unbilled.
func TestAcquireLease_waitsForTheEndOfAnotherTask(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		october := b.config(t, "a")
		october.Task = "monthly-billing:2026-10"
		first, err := AcquireLease(t.Context(), october)
		require.NoError(t, err)
		require.Equal(t, "a@monthly-billing:2026-10", b.holder(t))
		rerun := b.config(t, "b")
		rerun.Task = "monthly-billing:2026-09"
		began := time.Now()
		time.AfterFunc(time.Hour, func() { _ = first.Release(t.Context()) })
		second, err := AcquireLease(t.Context(), rerun)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), time.Hour)
		require.Less(t, time.Since(began), time.Hour+time.Minute)
		require.Equal(t, "b@monthly-billing:2026-09", b.holder(t))

		same := b.config(t, "c")
		same.Task = rerun.Task
		var held *LeaseHeldError
		_, err = AcquireLease(t.Context(), same)
		require.ErrorAs(t, err, &held)
		require.Equal(t, "b@monthly-billing:2026-09", held.Holder)

		same.Wait = true
		began = time.Now()
		time.AfterFunc(time.Hour, func() { _ = second.Release(context.Background()) })
		third, err := AcquireLease(t.Context(), same)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), time.Hour)
		require.NoError(t, third.Release(context.Background()))
	})
}

// client-go compares records as JSON, which has whole seconds.
func TestAcquireLease_seesARenewalInTheSameSecond(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutLease(billing, duesday, heldBy("a", 2))
		renewed := time.Now().Add(900 * time.Millisecond)
		time.AfterFunc(900*time.Millisecond, func() { b.PutLease(billing, duesday, heldBy("a", 2)) })
		config := b.config(t, "b")
		config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = 2*time.Second, 1900*time.Millisecond, 10*time.Millisecond
		lease, err := AcquireLease(t.Context(), config)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(renewed), 2*time.Second, "taken before it expired")
		require.NoError(t, lease.Release(t.Context()))
	})
}

// The record of a dead holder looks like a live one, fresh renewTime and all.
func TestAcquireLease_isNotLostToADeadHolder(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		die(b.lead(t, "dead"))
		began := time.Now()
		lease := b.lead(t, "b")
		require.GreaterOrEqual(t, time.Since(began), 15*time.Second, "taken before it expired")
		require.Less(t, time.Since(began), 20*time.Second)
		requireLeads(t, lease)
	})
}

// Whenever the leader dies between two of its renewals, and whenever a candidate
// looks.
func TestAcquireLease_followsADeadHolderWithinTwoRetryPeriodsOfItsLease(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		leader := b.lead(t, "0")
		for i := range 40 {
			next := b.config(t, fmt.Sprint(i+1))
			next.Wait = true
			var (
				err      error
				dead     = leader
				acquired = make(chan struct{})
			)
			go func() {
				defer close(acquired)
				leader, err = AcquireLease(t.Context(), next)
			}()
			advance(30*time.Second + time.Duration(i)*50*time.Millisecond)
			die(dead)
			died := time.Now()
			<-acquired
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(died), next.LeaseDuration+2*next.RetryPeriod)
		}
		require.NoError(t, leader.Release(t.Context()))
	})
}

func TestAcquireLease_waitsOutTheRecordsOwnDuration(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutLease(billing, duesday, heldBy("dead", 120))
		began := time.Now()
		b.lead(t, "b")
		require.GreaterOrEqual(t, time.Since(began), 2*time.Minute)
		require.Less(t, time.Since(began), 125*time.Second)
	})
}

// A holder whose clock is years off, either way, is judged by what it does.
func TestAcquireLease_readsNoClockButItsOwn(t *testing.T) {
	for _, off := range []time.Duration{-10_000 * time.Hour, 10_000 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				spec := heldBy("dead", 15)
				spec.RenewTime.Time = time.Now().Add(off)
				b.PutLease(billing, duesday, spec)
				began := time.Now()
				b.lead(t, "b")
				require.GreaterOrEqual(t, time.Since(began), 15*time.Second)
				require.Less(t, time.Since(began), 20*time.Second)
			})
		})
	}
}

// A write of a dead holder may take effect after the first look. A second one
// cannot: it would have had to know the first.
func TestAcquireLease_isNotLostToADeadHoldersLateWrite(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		dead := b.lead(t, "dead")
		advance(time.Minute)
		b.befall("dead", "PUT", kubesim.Fault{Before: 12 * time.Second})
		advance(3 * time.Second)
		die(dead)
		before := b.Lease(billing, duesday).ResourceVersion
		lease := b.lead(t, "b")
		requireLeads(t, lease)
		b.Faults(nil)
		require.Equal(t, "b", b.holder(t))
		require.NotEqual(t, before, b.Lease(billing, duesday).ResourceVersion)
	})
}

// Two replacements of a dead leader: one leads, the other has seen it write.
func TestAcquireLease_isLostToARivalThatWasFaster(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutLease(billing, duesday, heldBy("dead", 15))
		type outcome struct {
			lease *Lease
			err   error
		}
		outcomes := make(chan outcome)
		for _, identity := range []string{"b", "c"} {
			go func() {
				lease, err := AcquireLease(context.Background(), b.config(t, identity))
				outcomes <- outcome{lease, err}
			}()
		}
		first, second := <-outcomes, <-outcomes
		if first.lease == nil {
			first, second = second, first
		}
		requireLeads(t, first.lease)
		var held *LeaseHeldError
		require.ErrorAs(t, second.err, &held)
		require.Equal(t, b.holder(t), held.Holder)
		require.NoError(t, first.lease.Release(context.Background()))
	})
}

func TestAcquireLease_winsWhenTheHolderReleases(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.PutLease(billing, duesday, heldBy("a", 3600))
		won := make(chan *Lease)
		go func() {
			lease, err := AcquireLease(context.Background(), b.config(t, "b"))
			if err != nil {
				t.Error(err)
			}
			won <- lease
		}()
		advance(30 * time.Second)
		b.PutLease(billing, duesday, heldBy("", 1))
		released := time.Now()
		lease := <-won
		require.Less(t, time.Since(released), 5*time.Second)
		require.NoError(t, lease.Release(context.Background()))
	})
}

func TestAcquireLease_refusesWhatIsMisconfigured(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b *leaseBundle, c *LeaseConfig)
		want   string
	}{
		"no such Lease": {
			func(b *leaseBundle, _ *LeaseConfig) { b.DeleteLease(billing, duesday) }, "manifests/lease.yaml",
		},
		"get is forbidden": {
			func(b *leaseBundle, _ *LeaseConfig) { b.befall("a", "GET", kubesim.Fault{Status: 403}) }, "manifests/role.yaml",
		},
		"update is forbidden": {
			func(b *leaseBundle, _ *LeaseConfig) { b.befall("a", "PUT", kubesim.Fault{Status: 403}) }, "manifests/role.yaml",
		},
		"a name that is none":       {func(_ *leaseBundle, c *LeaseConfig) { c.Name = "Dues/Day" }, "lease name"},
		"no namespace":              {func(_ *leaseBundle, c *LeaseConfig) { c.Namespace = "" }, "lease namespace"},
		"no identity":               {func(_ *leaseBundle, c *LeaseConfig) { c.Identity = "" }, "identity"},
		"an identity with a task":   {func(_ *leaseBundle, c *LeaseConfig) { c.Identity = "a@b" }, "identity"},
		"a deadline past the lease": {func(_ *leaseBundle, c *LeaseConfig) { c.RenewDeadline = c.LeaseDuration }, "renewDeadline"},
		"a deadline too near":       {func(_ *leaseBundle, c *LeaseConfig) { c.RetryPeriod = c.RenewDeadline * 9 / 10 }, "renewDeadline"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				config := b.config(t, "a")
				tc.change(b, &config)
				_, err := AcquireLease(withinAnHour(t), config)
				require.Equal(t, exitcode.Misconfigured, exitcode.Of(err), "%v", err)
				require.ErrorContains(t, err, tc.want)
			})
		})
	}
}

func TestAcquireLease_failsWhenTheAPIDoesNotAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		method string
		fault  kubesim.Fault
	}{
		"hangs":             {"", kubesim.Fault{Before: kubesim.Forever}},
		"fails":             {"", kubesim.Fault{Status: 500}},
		"refuses writes":    {"PUT", kubesim.Fault{Status: 503}},
		"hangs on writes":   {"PUT", kubesim.Fault{Before: kubesim.Forever}},
		"refuses the token": {"", kubesim.Fault{Status: 401}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				b.befall("a", tc.method, tc.fault)
				began := time.Now()
				_, err := AcquireLease(withinAnHour(t), b.config(t, "a"))
				require.Error(t, err)
				require.Equal(t, exitcode.Unfinished, exitcode.Of(err), "%v", err)
				require.Less(t, time.Since(began), 30*time.Second)
				var held *LeaseHeldError
				require.False(t, errors.As(err, &held))
			})
		})
	}
}

func TestAcquireLease_outlastsAShortOutage(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		ended := time.Now().Add(8 * time.Second)
		b.Faults(func(*http.Request) kubesim.Fault {
			if time.Now().Before(ended) {
				return kubesim.Fault{Status: 500}
			}
			return kubesim.Fault{}
		})
		requireLeads(t, b.lead(t, "a"))
	})
}

func TestAcquireLease_endsWithItsContext(t *testing.T) {
	for name, fault := range map[string]kubesim.Fault{
		"while it waits":      {},
		"while the API hangs": {Before: kubesim.Forever},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				b.PutLease(billing, duesday, heldBy("dead", 3600))
				b.befall("b", "", fault)
				stopped := errors.New("told to stop")
				ctx, cancel := context.WithCancelCause(t.Context())
				ends := time.Now().Add(3 * time.Second)
				time.AfterFunc(3*time.Second, func() { cancel(stopped) })
				_, err := AcquireLease(ctx, b.config(t, "b"))
				require.ErrorIs(t, err, stopped)
				require.Zero(t, time.Since(ends))
				require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
			})
		})
	}
}

// The write was granted, and nobody heard: whoever comes next need not wait.
func TestAcquireLease_clearsARecordThatItMayHaveWritten(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		b.befall("a", "PUT", kubesim.Fault{After: kubesim.Forever})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, func() {
			b.Faults(nil)
			cancel()
		})
		_, err := AcquireLease(ctx, b.config(t, "a"))
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, b.holder(t))
	})
}

func TestLease_isGivenUpBeforeARivalCanTakeIt(t *testing.T) {
	for name, fault := range map[string]kubesim.Fault{
		"the API hangs":              {Before: kubesim.Forever},
		"the answers are lost":       {After: kubesim.Forever},
		"the API fails":              {Status: 500},
		"the right is taken away":    {Status: 403},
		"the API asks to slow down":  {Status: 429},
		"answers come late":          {After: 4900 * time.Millisecond},
		"requests take effect late":  {Before: 20 * time.Second},
		"requests are a little slow": {Before: 4900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				lease := b.lead(t, "a")
				advance(time.Minute)
				b.befall("a", "", fault)
				type won struct {
					lease *Lease
					lost  error // the first leader's context, at that moment
				}
				rival := make(chan won)
				go func() {
					for {
						l, err := AcquireLease(context.Background(), b.config(t, "b"))
						if err == nil {
							rival <- won{l, context.Cause(lease.Context())}
							return
						}
					}
				}()
				// A slow API is no reason to lead no more; a dead one is.
				select {
				case <-lease.Context().Done():
					got := <-rival
					require.ErrorIs(t, got.lost, ErrLeaseLost)
					require.NoError(t, got.lease.Release(context.Background()))
				case got := <-rival:
					require.NoError(t, got.lease.Release(context.Background()))
					require.Fail(t, "two lead", "the first one's context: %v", got.lost)
				case <-time.After(time.Hour):
					require.Contains(t, []string{"answers come late", "requests are a little slow"}, name, "leads on")
					require.NoError(t, lease.Release(context.Background()))
					got := <-rival
					require.NoError(t, got.lease.Release(context.Background()))
				}
			})
		})
	}
}

// Exactly: the deadline counts from when the last granted renewal was sent,
// however long its answer took.
func TestLease_endsRenewDeadlineAfterTheLastGrantedRenewalWasSent(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		advance(time.Minute + time.Millisecond)
		var granted time.Time
		b.Faults(func(r *http.Request) kubesim.Fault {
			if granted.IsZero() {
				granted = time.Now()
				return kubesim.Fault{After: 4 * time.Second}
			}
			return kubesim.Fault{Before: kubesim.Forever}
		})
		requireLeaseLost(t, lease)
		require.Equal(t, 10*time.Second, time.Since(granted))
	})
}

func TestLease_isKeptThroughAnOutageShorterThanTheDeadline(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		advance(time.Minute)
		b.befall("a", "", kubesim.Fault{After: kubesim.Forever}) // granted, unheard
		advance(4 * time.Second)
		b.Faults(nil)
		advance(time.Minute)
		requireLeads(t, lease)
	})
}

// Whoever wrote it, the record is not ours any more: a Lease that was deleted
// and made anew, or one that somebody edited.
func TestLease_isLostAtOnceWhenTheRecordNamesAnother(t *testing.T) {
	for name, spec := range map[string]coordinationv1.LeaseSpec{
		"another": heldBy("b", 15),
		"nobody":  {},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *leaseBundle) {
				lease := b.lead(t, "a")
				advance(time.Minute)
				b.PutLease(billing, duesday, spec)
				changed := time.Now()
				requireLeaseLost(t, lease)
				require.LessOrEqual(t, time.Since(changed), 2*time.Second)
				advance(time.Minute)
				require.NotEqual(t, "a", b.holder(t), "taken up again")
			})
		})
	}
}

func TestLease_thatIsLostStaysLost(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		b.befall("a", "", kubesim.Fault{Status: 500})
		requireLeaseLost(t, lease)
		b.Faults(nil)
		puts := b.puts()
		advance(time.Minute)
		require.Empty(t, puts())
		require.False(t, lease.Fresh())
	})
}

// A process that wakes asks Fresh before any of its timers has run.
func TestLeaseFresh_isFalseToAProcessThatJustWoke(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		config := b.config(t, "a")
		slept := make(chan struct{})
		config.Now = func() time.Time {
			select {
			case <-slept:
				return time.Now().Add(10 * time.Second)
			default:
				return time.Now()
			}
		}
		lease, err := AcquireLease(t.Context(), config)
		require.NoError(t, err)
		advance(time.Second) // between two renewals
		require.True(t, lease.Fresh())
		close(slept)
		require.NoError(t, context.Cause(lease.Context()))
		require.False(t, lease.Fresh())

		// Nor does it take the expired Lease up again, or release it yet.
		puts := b.puts()
		requireLeaseLost(t, lease)
		advance(time.Minute)
		require.Empty(t, puts())
		require.Equal(t, "a", b.holder(t))
		require.NoError(t, lease.Release(context.Background()))
		require.Empty(t, b.holder(t))
	})
}

func TestLeaseRelease_writesWhatClientGosReleaseWrites(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		transitions := *b.Lease(billing, duesday).Spec.LeaseTransitions
		require.NoError(t, lease.Release(t.Context()))
		require.Error(t, lease.Context().Err())
		require.NotErrorIs(t, context.Cause(lease.Context()), ErrLeaseLost)
		require.False(t, lease.Fresh())
		spec := b.Lease(billing, duesday).Spec
		require.Empty(t, *spec.HolderIdentity)
		require.EqualValues(t, 1, *spec.LeaseDurationSeconds)
		require.Equal(t, transitions, *spec.LeaseTransitions)

		began := time.Now()
		b.lead(t, "b")
		require.Zero(t, time.Since(began), "the next one had to wait")
		require.NoError(t, lease.Release(t.Context()), "a second time")
		require.Equal(t, "b", b.holder(t))
	})
}

func TestLeaseRelease_leavesAnothersRecordAlone(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		b.PutLease(billing, duesday, heldBy("b", 15))
		before := b.Lease(billing, duesday)
		require.NoError(t, lease.Release(t.Context()))
		require.Equal(t, before, b.Lease(billing, duesday))
	})
}

func TestLeaseRelease_freesALostLeaseThatNobodyTook(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		b.befall("a", "", kubesim.Fault{Before: kubesim.Forever})
		requireLeaseLost(t, lease)
		b.Faults(nil)
		require.NoError(t, lease.Release(t.Context()))
		require.Empty(t, b.holder(t))
	})
}

func TestLeaseRelease_failsInTimeWhenTheAPIHangs(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		b.befall("a", "", kubesim.Fault{Before: kubesim.Forever})
		began := time.Now()
		require.Error(t, lease.Release(t.Context()))
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
	})
}

// A renewal that hangs in the network and arrives after the release must not
// bring the holder back.
func TestLeaseRelease_isNotUndoneByALateRenewal(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		late := make(chan struct{}, 1)
		b.Faults(func(r *http.Request) kubesim.Fault {
			if r.Method == http.MethodPut && len(late) == 0 {
				late <- struct{}{}
				return kubesim.Fault{Before: time.Minute}
			}
			return kubesim.Fault{}
		})
		advance(2*time.Second + time.Millisecond)
		synctest.Wait()
		require.Len(t, late, 1)
		require.NoError(t, lease.Release(t.Context()))
		require.Empty(t, b.holder(t))
		advance(2 * time.Minute)
		require.Empty(t, b.holder(t))
	})
}

// It may also take effect in the midst of the release.
func TestLeaseRelease_outlastsALateRenewal(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		lease := b.lead(t, "a")
		advance(time.Millisecond)
		late, read := false, false
		b.Faults(func(r *http.Request) kubesim.Fault {
			switch {
			case r.Method == http.MethodPut && !late:
				late = true
				return kubesim.Fault{Before: time.Second}
			case r.Method == http.MethodGet && !read:
				read = true
				return kubesim.Fault{After: 2 * time.Second}
			}
			return kubesim.Fault{}
		})
		advance(2 * time.Second)
		require.NoError(t, lease.Release(t.Context()))
		require.Empty(t, b.holder(t))
	})
}

// 1.5 s would be written as 1 s, and taken before it is given up.
func TestLease_durationIsRoundedUpToTheRecordsSeconds(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		config := b.config(t, "a")
		config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = 1500*time.Millisecond, 1400*time.Millisecond, 200*time.Millisecond
		lease, err := AcquireLease(t.Context(), config)
		require.NoError(t, err)
		require.EqualValues(t, 2, *b.Lease(billing, duesday).Spec.LeaseDurationSeconds)
		require.NoError(t, lease.Release(t.Context()))
	})
}
