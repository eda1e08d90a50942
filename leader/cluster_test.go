package leader

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestInCluster_isNoneOutsideAPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := InCluster("")
	require.ErrorIs(t, err, ErrNoCluster)
}

// HTTP/2 would go on using a dead connection for longer than a lease lives.
func TestCluster_speaksHTTP1(t *testing.T) {
	t.Parallel()
	protocols := make(chan int, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocols <- r.ProtoMajor
		http.Error(w, "", http.StatusForbidden)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cluster := &Cluster{Namespace: billing, Config: &rest.Config{
		Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	}}
	_, _, err := cluster.ScheduledTime(t.Context(), "duesday", 2*time.Second, 500*time.Millisecond)
	require.Error(t, err)
	require.Equal(t, 1, await(t, "a request", protocols))
}
