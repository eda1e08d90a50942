package outside_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/outside"
)

// answering is a server that answers whatever it is asked like this.
func answering(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = fmt.Fprint(conn, answer)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return "http://" + listener.Addr().String() + "/services/hunter2"
}

func TestClient_anErrorIsShortAndShowsNoURL(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"no status":       "HTTP/1.1 " + strings.Repeat("é", 20_000) + "\r\n\r\n",
		"an endless head": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n",
		"nothing":         "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := outside.Client()
			defer client.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, answering(t, answer), nil)
			require.NoError(t, err)
			res, err := client.Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
			err = outside.Error(err)
			require.Error(t, err)
			require.LessOrEqual(t, len(err.Error()), 300)
			require.NotContains(t, err.Error(), "hunter2")
			require.True(t, strings.ToValidUTF8(err.Error(), "?") == err.Error())
		})
	}
}

func TestError_staysWhatItIs(t *testing.T) {
	t.Parallel()
	require.NoError(t, outside.Error(nil))
	require.ErrorIs(t, outside.Error(context.DeadlineExceeded), context.DeadlineExceeded)
	require.Equal(t, "short", outside.Cut("short", outside.MaxText))
}
