package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// row is one line of the table: something that happens, and what must hold meanwhile.
type row interface {
	title() string
	shortly() time.Duration // how long it lasts in the short form; 0: not part of it
	missing(m *machine) string
	setup(m *machine) setup
	play(ctx context.Context, s *stage, out *result) error
}

// stage is what a row plays on: a world that the load runs in.
type stage struct {
	*world

	load   *load
	direct *direct
	hold   time.Duration // how long the fault lasts
	began  time.Time
	// lost says that the store has just lost what it knew.
	lost func()

	beside  samples      // of the time of foreign SETs
	foreign atomic.Int64 // SETs
	memory  rss          // over an outage

	stopLoad context.CancelFunc
	running  sync.WaitGroup
}

// allRows is the table from top to bottom.
func allRows() []row {
	var rows []row
	for _, f := range faults() {
		rows = append(rows, f)
	}
	rows = append(rows, outage())
	for _, c := range checks() {
		rows = append(rows, c)
	}
	return rows
}

// runOne runs one row in a world of its own.
func runOne(ctx context.Context, r row, opts options, m *machine, stderr io.Writer) (out result) {
	began := time.Now()
	out = result{Name: r.title()}
	defer func() { out.TookSeconds = time.Since(began).Seconds() }()
	if out.Missing = r.missing(m); out.Missing != "" {
		return out
	}
	w, err := newWorld(ctx, opts, m, r.setup(m))
	if err != nil {
		out.broken("%v", err)
		return out
	}
	s := &stage{world: w, load: newLoad(w), direct: newDirect(w), hold: r.shortly()}
	if f, ok := r.(interface{ fully() time.Duration }); ok && (opts.full || s.hold == 0) {
		s.hold = f.fully()
	}
	s.lost = s.load.forget
	if err := r.play(ctx, s, &out); err != nil {
		out.broken("%v", err)
	}
	s.quiet()
	out.close()
	keep := opts.keep || len(out.Broken) > 0
	w.stop(keep)
	if keep {
		fmt.Fprintf(stderr, "faults: %s: logs in %s\n", out.Name, w.dir)
	}
	return out
}

// busy starts the load, and returns once every user who is to be over her limit holds her slot.
func (s *stage) busy(ctx context.Context) error {
	loading, stop := context.WithCancel(ctx)
	s.stopLoad = stop
	s.running.Go(func() { s.load.run(loading) })
	s.running.Go(func() { s.direct.run(loading) })
	err := eventually(ctx, 10*time.Second, "users hold their slots", func() bool { return s.load.holders() == usersOver })
	if err != nil {
		return fmt.Errorf("before anything happened: %w; healthz: %s", err, s.direct.health(ctx))
	}
	pause(ctx, warmUp)
	return nil
}

// warmUp is how long all is well before something happens.
const warmUp = 700 * time.Millisecond

// quiet ends the load.
func (s *stage) quiet() {
	if s.stopLoad != nil {
		s.stopLoad()
		s.running.Wait()
	}
}

// nginxFailedOpen counts, in nginx's log, the streams that it let start by itself, and how often a counted one came next.
func (s *stage) nginxFailedOpen() (lines, ends int) {
	text, err := os.ReadFile(filepath.Join(s.dir, "nginx", "access.log"))
	if err != nil {
		return 0, 0
	}
	open := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, "slot=failopen reason=unavailable"):
			open = true
			lines++
		case open && strings.Contains(line, "slot=held"):
			open = false
			ends++
		}
	}
	return lines, ends
}
