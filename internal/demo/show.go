package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/duesday/duesday/internal/stripesim"
)

// display shows how many charges the bank has made so far: a bar on a terminal,
// else a line every few seconds.
type display struct {
	name string
	bank *stripesim.Sim
	tty  bool

	mu   sync.Mutex
	done chan struct{}
	gone sync.WaitGroup
	once sync.Once
}

func watch(name string, bank *stripesim.Sim) *display {
	d := &display{name: name, bank: bank, tty: term.IsTerminal(int(os.Stdout.Fd())), done: make(chan struct{})}
	every := 3 * time.Second
	if d.tty {
		every = 100 * time.Millisecond
	}
	d.gone.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-d.done:
				return
			case <-tick.C:
				d.draw()
			}
		}
	})
	return d
}

func (d *display) draw() {
	n := len(d.bank.Succeeded())
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.tty {
		fmt.Printf("  %s: %d charges\n", d.name, n)
		return
	}
	const width = 40
	full := min(n*width/customers, width)
	over := ""
	if n > customers {
		over = "  more charges than customers!"
	}
	fmt.Printf("\r\x1b[K  %-18s [%s%s] %4d charges%s", d.name, strings.Repeat("█", full), strings.Repeat("·", width-full), n, over)
}

// say prints a line of its own.
func (d *display) say(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tty {
		fmt.Print("\r\x1b[K")
	}
	fmt.Println("  ·", line)
}

func (d *display) stop() {
	d.once.Do(func() {
		close(d.done)
		d.gone.Wait()
		d.draw()
		if d.tty {
			fmt.Println()
		}
	})
}

// result is a month's outcome by the bank's books.
type result struct {
	name       string
	payable    int
	charges    int
	duplicates int // succeeded charges beyond a customer's first
	missed     int // payable customers without one
	inDoubt    int
	took       time.Duration
}

func (r result) perfect() bool { return r.duplicates == 0 && r.missed == 0 && r.inDoubt == 0 }

func count(name string, bank *stripesim.Sim, inDoubt int, took time.Duration) result {
	r := result{name: name, payable: customers - 10, inDoubt: inDoubt, took: took}
	paid := map[string]int{}
	for _, c := range bank.Succeeded() {
		r.charges++
		paid[c.Customer]++
	}
	r.duplicates = r.charges - len(paid)
	r.missed = r.payable - len(paid)
	return r
}

func tell(results ...result) {
	fmt.Println()
	fmt.Printf("%-20s %10s %8s %8s %11s %7s %9s %8s\n", "", "customers", "payable", "charges", "duplicates", "missed", "in doubt", "seconds")
	for _, r := range results {
		fmt.Printf("%-20s %10d %8d %8d %11d %7d %9d %8.1f\n", r.name, customers, r.payable, r.charges, r.duplicates, r.missed, r.inDoubt, r.took.Seconds())
	}
	fmt.Printf(`
Payable are all but ten, whose cards the bank declines. Both jobs met the same
faults; the second one also lost its leader to a kill -9 half-way.

Where to look next:
  README.md              what is promised, why it holds, and the first run on your own customers
  job/, charges/         the code that did this
  internal/demo/naive.go the job that did not
`)
}
