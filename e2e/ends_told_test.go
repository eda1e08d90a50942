package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireTold looks where people look: kubectl describe of the Job and of its
// pods says how each ended.
func (b *team) requireTold(t *testing.T, job string, outcomes map[string]int, reasons ...string) {
	t.Helper()
	said := b.kubectl(t, "describe", "job", job)
	for _, reason := range reasons {
		require.Regexp(t, `(?m)^\s+Normal\s+`+reason+`\s+\S+\s+duesday\s+Duesday: `, said)
	}
	got := map[string]int{}
	for _, pod := range b.pods(t, job) {
		end := ended(pod)
		require.NotNil(t, end, pod.Name)
		var message struct {
			Text     string `json:"text"`
			Outcome  string `json:"outcome"`
			ExitCode int32  `json:"exit_code"`
		}
		require.NoError(t, json.Unmarshal([]byte(end.Message), &message), "%q", end.Message)
		require.NotEmpty(t, message.Text)
		require.Equal(t, end.ExitCode, message.ExitCode)
		got[message.Outcome]++
	}
	require.Equal(t, outcomes, got)
}
