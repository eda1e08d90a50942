package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/duesday/duesday/job"
)

// bar is a terminal that may show a run's progress in its last line. What else
// is written to it, a line at a time, goes above. It may be written to from any
// goroutine.
type bar struct {
	out io.Writer

	mu    sync.Mutex
	shown string // what stands in the last line now
}

const (
	barRefresh = 200 * time.Millisecond
	clearLine  = "\r\x1b[K"
)

func (b *bar) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown == "" {
		return b.out.Write(line)
	}
	// In one piece: the terminal shows nothing in between.
	if _, err := io.WriteString(b.out, clearLine+string(line)+b.shown); err != nil {
		return 0, err
	}
	return len(line), nil
}

// show puts the text into the last line, or takes it away.
func (b *bar) show(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if text == b.shown {
		return
	}
	b.shown = text
	_, _ = io.WriteString(b.out, clearLine+text) // a terminal that has gone misses nothing
}

// columns is how wide the terminal is now.
func (b *bar) columns() int {
	if f, ok := b.out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// progress shows the run until what it returns is called. It reports whether it
// does: where there is no terminal that can, the log tells the progress.
func (p *program) progress(f logFlags, live *job.Live) (shown bool, end func()) {
	if kind := p.lookup("TERM"); p.bar == nil || p.quiet || f.format != "console" || kind == "" || kind == "dumb" {
		return false, func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer p.bar.show("")
		tick := time.NewTicker(barRefresh)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.bar.show(progressLine(live.Snapshot(), p.bar.columns()))
			}
		}
	}()
	return true, func() {
		close(done)
		<-ended
	}
}

// progressLine is the progress in less than so many columns: what matters least
// goes first. It has no colours. Empty: the run has not begun.
func progressLine(p job.Progress, columns int) string {
	if p.StartedAt.IsZero() {
		return ""
	}
	parts := []string{count(p.Tally.Succeeded) + " charged", count(p.Tally.Declined) + " declined", count(p.Tally.InDoubt-p.InFlight) + " in doubt"}
	if p.PerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%.1f/s", p.PerSecond))
	}
	if p.TimeLeft > 0 {
		parts = append(parts, p.TimeLeft.String()+" left")
	}
	const (
		narrow = 8  // narrower, a bar says nothing
		frame  = 10 // what stands around bar and text
	)
	dues := p.Tally.Dues()
	for n := len(parts); n > 0; n-- {
		text := strings.Join(parts[:n], ", ")
		width := min(columns-1-frame-len(text), 40)
		if p.Known && dues > 0 && width >= narrow {
			return drawBar(dues, dues-p.Left, width, text)
		}
		if len(text) < columns && (!p.Known || dues == 0) {
			return text
		}
	}
	text := parts[0]
	if dues > 0 && p.Known {
		text = fmt.Sprintf("%d%% %s", 100*(dues-p.Left)/dues, text)
	}
	return text[:min(len(text), max(columns-1, 0))]
}

func drawBar(dues, done, width int, text string) string {
	drawn := progressbar.NewOptions64(int64(dues),
		progressbar.OptionSetWriter(io.Discard), progressbar.OptionSetWidth(width),
		progressbar.OptionSetDescription(text), progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}))
	// Neither can fail: the number is not above dues, and nothing is written.
	_ = drawn.Set64(int64(min(max(done, 0), dues)))
	_ = drawn.RenderBlank()
	return strings.TrimRight(strings.TrimPrefix(drawn.String(), "\r"), " ")
}
