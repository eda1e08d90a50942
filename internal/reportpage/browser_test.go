package reportpage_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// site is all of the network that a browser of the test has: whatever it asks
// for, under any name, comes here and is written down.
type site struct {
	*httptest.Server
	pages map[string]string // by URL; read by the server from its start

	mu    sync.Mutex
	asked []string
}

func serve(t testing.TB, pages map[string]string) *site {
	t.Helper()
	s := &site{pages: pages}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	url := r.Method + " " + r.URL.String()
	// Chromium's own wish for updates and the like, which no page of ours could
	// have: none has that name in it.
	if !strings.HasSuffix(r.URL.Hostname(), ".google.com") && !strings.HasSuffix(r.URL.Hostname(), ".googleapis.com") {
		s.mu.Lock()
		s.asked = append(s.asked, url)
		s.mu.Unlock()
	}
	page, ok := s.pages[strings.TrimPrefix(url, "GET ")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, page)
}

// requests is what was asked for until now.
func (s *site) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// browse opens a page of the site in Chromium, and returns what it prints.
func (s *site) browse(t testing.TB, flags ...string) []byte {
	t.Helper()
	var bin string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			bin = found
			break
		}
	}
	require.NotEmpty(t, bin, "no chromium in PATH: install it (hack/setup test, apt-get install chromium)")
	profile, err := os.MkdirTemp("", "duesday-browser-")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--no-pdf-header-footer",
		"--user-data-dir=" + profile, "--proxy-server=" + s.URL, "--proxy-bypass-list=<-loopback>",
	}, flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	// What it leaves behind would still write into its profile.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	require.NoError(t, os.RemoveAll(profile))
	require.NoError(t, err, errs.String())
	return out.Bytes()
}

func (s *site) screenshot(t testing.TB, url string, flags ...string) image.Image {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.png")
	s.browse(t, append(flags, "--window-size=1000,1300", "--screenshot="+file, url)...)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	picture, err := png.Decode(bytes.NewReader(content))
	require.NoError(t, err)
	return picture
}

// pixels is how many of the picture have the colour.
func pixels(picture image.Image, want color.RGBA) (n int) {
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			if color.RGBAModel.Convert(picture.At(x, y)) == want {
				n++
			}
		}
	}
	return n
}

const address = "http://report.test/page"

// leak is a page that asks for more.
const leak = `<!DOCTYPE html><title>leak</title><img src="http://elsewhere.test/x.png"><p>leak`

func TestBrowser_noRequestLeavesThePage(t *testing.T) {
	s := serve(t, map[string]string{address: write(t, million()), "http://report.test/hostile": write(t, hostile()), "http://report.test/leak": leak})
	for url, page := range s.pages {
		require.NotContains(t, page, "google", url)
	}
	s.screenshot(t, address)
	s.screenshot(t, "http://report.test/hostile")
	require.Equal(t, []string{"GET " + address, "GET http://report.test/hostile"}, s.requests())

	s.screenshot(t, "http://report.test/leak")
	require.Contains(t, s.requests(), "GET http://elsewhere.test/x.png", "the test would not notice")
}

func TestBrowser_lightAndDark(t *testing.T) {
	s := serve(t, map[string]string{address: write(t, million())})
	for _, theme := range []struct {
		flags        []string
		paper, green color.RGBA
	}{
		{nil, color.RGBA{0xff, 0xff, 0xff, 0xff}, color.RGBA{0x1f, 0x8a, 0x5b, 0xff}},
		{[]string{"--blink-settings=preferredColorScheme=0"}, color.RGBA{0x14, 0x17, 0x1b, 0xff}, color.RGBA{0x37, 0xb3, 0x7e, 0xff}},
	} {
		picture := s.screenshot(t, address, theme.flags...)
		require.Equal(t, theme.paper, color.RGBAModel.Convert(picture.At(3, 3)))
		require.Greater(t, pixels(picture, theme.paper), 500_000, "the page is not what it is in")
		require.Greater(t, pixels(picture, theme.green), 50_000, "the bars are not drawn")
	}
}

func TestBrowser_prints(t *testing.T) {
	s := serve(t, map[string]string{address: write(t, million())})
	file := filepath.Join(t.TempDir(), "page.pdf")
	s.browse(t, "--print-to-pdf="+file, address)
	pdf, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(pdf, []byte("%PDF-")))
	sheets := len(regexp.MustCompile(`/Type /Page\b`).FindAll(pdf, -1))
	require.True(t, sheets >= 2 && sheets <= 6, "%d sheets", sheets)
}

// frames shows pages in frames of some widths, and says how wide each page then
// made itself, and its title.
const frames = `<!DOCTYPE html><title>frames</title>%s
<script>onload = () => { document.body.textContent = Array.from(document.querySelectorAll("iframe"), f =>
	f.name + ": " + f.contentDocument.documentElement.scrollWidth + " " + f.contentDocument.title).join("; ") }</script>`

func TestBrowser_nothingSticksOutNorRuns(t *testing.T) {
	pages := map[string]string{"nobody": write(t, nobody()), "one": write(t, one()), "million": write(t, million()), "hostile": write(t, hostile())}
	site := map[string]string{}
	var html string
	var want []string
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		site["http://report.test/"+name] = pages[name]
		for _, width := range []int{320, 360, 600, 1000} {
			html += fmt.Sprintf(`<iframe name="%s" src="/%[1]s" width="%[2]d" height="800" style="border:0"></iframe>`, name, width)
			want = append(want, fmt.Sprintf("%s: %d Billing period 2026-10", name, width))
		}
	}
	site["http://report.test/"] = fmt.Sprintf(frames, html)
	dom := string(serve(t, site).browse(t, "--virtual-time-budget=10000", "--dump-dom", "http://report.test/"))
	for _, frame := range want {
		require.Contains(t, dom, frame)
	}
}
