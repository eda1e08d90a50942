package chart

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/charttest"
)

// Every command gets settings and arguments that it has, and takes them: it
// gets as far as what only a cluster can give.
func TestTemplate_settingsAreFlags(t *testing.T) {
	t.Parallel()
	program, err := charttest.Build(t.Context(), repository, t.TempDir())
	require.NoError(t, err)
	stripe := "STRIPE_API_KEY_FILE: open /var/run/secrets/duesday/stripe/api-key"
	chat := "--notify-url-file: open /var/run/secrets/duesday/notify/url"
	admin := "DUESDAY_ADMIN_TOKEN_FILE: open /var/run/secrets/duesday/admin/token"
	for name, v := range map[string]struct {
		settings []setting
		want     map[string]string // what is lacking first, by the name of the object
	}{
		"usual": {nil, map[string]string{
			"duesday": stripe, "duesday-plan": "DATABASE_URL", "duesday-migrate": "DATABASE_URL",
		}},
		"reconcile": {[]setting{{"reconcile", `{"enabled":true,"retryDeclined":true}`}, {"billing.rate", "0.5"}}, map[string]string{
			"duesday": stripe, "duesday-plan": "DATABASE_URL", "duesday-migrate": "DATABASE_URL", "duesday-reconcile": stripe,
		}},
		"notify": {[]setting{{"reconcile.enabled", "true"}, {"notify", `{"existingSecret":"chat","signingKey":"hmac"}`}}, map[string]string{
			"duesday": chat, "duesday-plan": "DATABASE_URL", "duesday-migrate": "DATABASE_URL", "duesday-reconcile": chat,
		}},
		"proxy": {proxied, map[string]string{
			"duesday": admin, "duesday-plan": "DATABASE_URL", "duesday-migrate": "DATABASE_URL", "duesday-reconcile": admin,
			"duesday-proxy": stripe,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := charttest.Pods(render(t, v.settings...))
			require.Len(t, pods, len(v.want))
			for name, lacking := range v.want {
				container := pods[name].Spec.Containers[0]
				unknown, err := program.Unknown(t.Context(), container)
				require.NoError(t, err)
				require.Empty(t, unknown, name)
				var env []string
				if container.Args[0] == "run" {
					env = []string{"DUESDAY_LEADER_ELECT=false"}
				}
				said, err := program.Try(t.Context(), container, env...)
				require.NoError(t, err, name)
				require.Contains(t, said, lacking, name)
			}
		})
	}
}

// A reconcile needs no Lease, and so nothing of the cluster.
func TestTemplate_reconcile(t *testing.T) {
	t.Parallel()
	pod := charttest.Pods(render(t, setting{"reconcile.enabled", "true"}))["duesday-reconcile"].Spec
	require.Equal(t, []string{"reconcile"}, pod.Containers[0].Args)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.Greater(t, *pod.TerminationGracePeriodSeconds, int64(20+10), "above the drain")
}
