package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"

	"github.com/duesday/duesday/internal/outside"
)

// Pushgateway is where to push, and under which name.
type Pushgateway struct {
	URL *url.URL // with a user and a password, if it wants them
	Job string
	// Grouping is more of the grouping key, and Own of that of the process's own
	// metrics alone. Values must be of a few, and the same in every month: what is
	// pushed under a key stays there for ever.
	Grouping, Own map[string]string
}

// Push adds the metrics to what the Pushgateway has: the process's own, with how
// it ended, under job and command, and the state under the job, so that the last
// process to tell it is right. What is not told, like the last success by a run
// that failed, stays as it was. ctx bounds the whole.
func (m *Metrics) Push(ctx context.Context, to Pushgateway) error {
	client := answers{outside.Client()}
	defer client.CloseIdleConnections()
	// The library would show the password in an error.
	bare := *to.URL
	bare.User = nil
	add := func(own map[string]string, collectors ...prometheus.Collector) error {
		p := push.New(bare.String(), to.Job).Client(client)
		for _, c := range collectors {
			p.Collector(c)
		}
		if to.URL.User != nil {
			password, _ := to.URL.User.Password()
			p.BasicAuth(to.URL.User.Username(), password)
		}
		for _, group := range []map[string]string{to.Grouping, own} {
			for name, value := range group {
				p.Grouping(name, value)
			}
		}
		return p.AddContext(ctx)
	}
	own := map[string]string{"command": m.run.cfg.Command}
	maps.Copy(own, to.Own)
	var failed []error
	if err := add(own, m.run, ownEnd{m.ends, newEndDescs()}); err != nil {
		failed = append(failed, fmt.Errorf("push the run: %w", err))
	}
	if err := add(nil, m.state); err != nil {
		failed = append(failed, fmt.Errorf("push the state: %w", err))
	}
	return errors.Join(failed...)
}

// answers makes errors of a Pushgateway's answers itself: the library's show the
// URL, which may hold a token in its path.
type answers struct{ *http.Client }

func (c answers) Do(req *http.Request) (*http.Response, error) {
	res, err := c.Client.Do(req)
	if err != nil {
		return nil, outside.Error(err)
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		return res, nil
	}
	defer res.Body.Close()
	said := ""
	if res.StatusCode == http.StatusBadRequest { // its reason; a server that is none may say anything
		const enough = 512
		text, _ := io.ReadAll(io.LimitReader(res.Body, enough)) // or less of it
		said = ": " + outside.Cut(strings.Join(strings.Fields(string(text)), " "), outside.MaxText)
	}
	return nil, fmt.Errorf("it answered %d%s", res.StatusCode, said)
}
