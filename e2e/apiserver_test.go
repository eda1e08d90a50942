package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/duesday/duesday/e2e/cluster"
)

// Not parallel: nothing else can use the cluster meanwhile.
func TestAPIServer_canBeTakenAwayAndGivenBack(t *testing.T) {
	c, client := onCluster(t)
	if !c.Own() {
		require.ErrorIs(t, c.StopAPIServer(), cluster.ErrForeign)
		return
	}
	require.NoError(t, c.StopAPIServer())
	require.Error(t, askNodes(t, client, time.Minute))
	require.NoError(t, c.StartAPIServer(t.Context()))
	require.NoError(t, askNodes(t, client, time.Minute))

	require.NoError(t, c.PauseAPIServer())
	require.ErrorIs(t, askNodes(t, client, time.Second), context.DeadlineExceeded)
	require.NoError(t, c.ResumeAPIServer())
	require.NoError(t, askNodes(t, client, time.Minute))
}

func askNodes(t *testing.T, client kubernetes.Interface, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	return err
}
