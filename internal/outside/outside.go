// Package outside is for the servers that are told of a run and decide nothing
// of it: they may be anybody's, and their URL may hold a token. What they answer
// costs little memory, and what is said of them is short and shows no URL.
package outside

import (
	"errors"
	"net/http"
	"net/url"
	"unicode/utf8"
)

const (
	maxHeader = 64 << 10
	// MaxText is how much of a text that a receiver may have written is shown.
	MaxText = 300
)

// Client returns a client with connections of its own, which does not follow
// redirects: where they lead is not where the operator wanted it.
func Client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxHeader
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Error is the client's error without the URL, and short: a malformed answer is
// quoted in it. nil stays nil.
func Error(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if err == nil || len(err.Error()) <= MaxText {
		return err
	}
	return errors.New(Cut(err.Error(), MaxText))
}

// Cut shortens a text to at most n bytes, between two runes.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const dots = "…"
	n = max(n-len(dots), 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + dots
}
