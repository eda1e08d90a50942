package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/spf13/pflag"

	"github.com/duesday/duesday/internal/outside"
)

// notifyFlags say where the end of a run is POSTed to.
type notifyFlags struct{ url, urlFile, secretFile string }

func (f *notifyFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "notify-url", "", "`url` that the end of the run is POSTed to as JSON, with a text that Slack and Mattermost show")
	flags.StringVar(&f.urlFile, "notify-url-file", "", "`file` that holds that URL, which is a secret where its path is one, as Slack's is")
	flags.StringVar(&f.secretFile, "notify-secret-file", "", "`file` with a secret of 16 characters or more: the POST is signed with it (header Duesday-Signature)")
}

// notifier tells one receiver how runs end.
type notifier struct {
	url    string
	secret []byte // nil: nothing is signed
	http   *http.Client
	now    func() time.Time
}

// notifier is nil if nobody is to be told. Its errors never show the URL.
func (p *program) notifier(f notifyFlags) (*notifier, error) {
	address := strings.TrimSpace(f.url)
	switch {
	case address != "" && f.urlFile != "":
		return nil, usage("--notify-url and --notify-url-file: want one of them")
	case f.urlFile != "":
		content, err := os.ReadFile(f.urlFile)
		if err != nil {
			return nil, usage("--notify-url-file: %w", err)
		}
		if address = strings.TrimSpace(string(content)); address == "" {
			return nil, usage("--notify-url-file: %s is empty", f.urlFile)
		}
	case address == "" && f.secretFile != "":
		return nil, usage("--notify-secret-file: want --notify-url or --notify-url-file too")
	case address == "":
		return nil, nil
	}
	if err := checkNotifyURL(address); err != nil {
		return nil, err
	}
	n := &notifier{url: address, now: p.clock}
	if f.secretFile != "" {
		content, err := os.ReadFile(f.secretFile)
		if err != nil {
			return nil, usage("--notify-secret-file: %w", err)
		}
		if n.secret = bytes.TrimSpace(content); len(n.secret) < 16 {
			return nil, usage("--notify-secret-file: want 16 characters or more, got %d", len(n.secret))
		}
	}
	n.http = outside.Client()
	return n, nil
}

// checkNotifyURL lets the summary leave in clear text only where it cannot be
// read on the way: within the machine, or the cluster.
func checkNotifyURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return usage("--notify-url: want a URL like https://hooks.slack.com/services/…; what was given is not shown, it may hold a secret")
	}
	if u.Scheme == "http" && !isNear(u.Hostname()) {
		return usage("--notify-url: want https: http is for loopback, and for Services of the cluster by name, like http://chat.example.svc")
	}
	return nil
}

// isNear is true of loopback, and of names that only a cluster's DNS resolves.
func isNear(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") ||
		strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
}

// A receiver gets four tries in five seconds.
const (
	notifyTries   = 4
	notifyTry     = 2 * time.Second
	notifyTimeout = 5 * time.Second
)

// notification has one field that chats show, and one that they do not know.
type notification struct {
	Text    string `json:"text"`
	Duesday told   `json:"duesday"`
}

// send tells the receiver. Its errors never show the URL.
func (n *notifier) send(ctx context.Context, t told) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	defer n.http.CloseIdleConnections() // one message, and the process ends
	text := chatText(t.Text)
	t.Text = ""
	body, err := json.Marshal(notification{text, t})
	if err != nil {
		return fmt.Errorf("--notify-url: %w", err)
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 200 * time.Millisecond
	_, err = backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, n.post(ctx, body) },
		backoff.WithBackOff(pause), backoff.WithMaxTries(notifyTries))
	if err != nil {
		return fmt.Errorf("--notify-url: %w", err)
	}
	return nil
}

func (n *notifier) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTry)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(errors.New("it makes no request")) // its text shows the URL
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "duesday/"+version)
	if n.secret != nil {
		req.Header.Set("Duesday-Signature", n.sign(body))
	}
	res, err := n.http.Do(req)
	if err != nil {
		return outside.Error(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16)) // its answer is its status
	switch {
	case res.StatusCode >= 200 && res.StatusCode <= 299:
		return nil
	case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
		return fmt.Errorf("the receiver answered %d", res.StatusCode)
	}
	return backoff.Permanent(fmt.Errorf("the receiver answered %d", res.StatusCode))
}

// sign signs as Stripe signs its webhooks: HMAC-SHA-256 over the time, a full
// stop and the body, so that an old message cannot be replayed as a new one.
func (n *notifier) sign(body []byte) string {
	at := n.now().Unix()
	mac := hmac.New(sha256.New, n.secret)
	fmt.Fprintf(mac, "%d.%s", at, body)
	return fmt.Sprintf("t=%d,v1=%s", at, hex.EncodeToString(mac.Sum(nil)))
}

// chatText takes from an error's text what a chat would call somebody by.
func chatText(s string) string {
	return outside.Cut(strings.NewReplacer("<", "‹", ">", "›", "@", "(at)").Replace(s), 3000)
}
