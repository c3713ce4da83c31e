// Command bench measures streamcap beside its peers on the machine that it runs on: acquire and release through nginx,
// heartbeats, memory, and what grows. It writes results.json, results.md and charts. A target that is missed is a line in
// the results, not a failure.
//
// Redis, nginx and the sidecars are its own, on free ports of loopback, and end with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	exitOK     = 0
	exitFailed = 1 // something could not be measured; under -strict also a missed target
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are what the command line says.
type options struct {
	short, strict     bool
	only, out, redraw string
	pairs             int
	seconds           int // of one closed-loop run
	floor             string
	repository        string
	streamcap         string
}

// section is one part of the results.
type section struct {
	name    string
	measure func(context.Context, *bench) error
}

func sections() []section {
	return []section{
		{"peers", measurePeers},
		{"datagrams", measureDatagrams},
		{"heartbeats", measureHeartbeats},
		{"memory", measureMemory},
		{"growth", measureGrowth},
	}
}

// bench is one run of the program.
type bench struct {
	opts    options
	results *results
	log     io.Writer
}

func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.log, "bench: %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts := options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&opts.short, "short", false, "a few minutes instead of twenty: shorter runs, fewer and smaller points")
	flags.BoolVar(&opts.strict, "strict", false, "a missed target is a failure")
	flags.StringVar(&opts.only, "only", "", "measure only these of peers, datagrams, heartbeats, memory and growth, comma-separated")
	flags.StringVar(&opts.out, "out", "", "the directory for the results (docs/bench; with -short or -only .tmp/bench)")
	flags.StringVar(&opts.redraw, "redraw", "", "measure nothing: write Markdown and charts anew from this results.json")
	flags.IntVar(&opts.pairs, "pairs", 9, "paired runs of each peer")
	flags.IntVar(&opts.seconds, "seconds", 3, "the length of one run")
	flags.StringVar(&opts.floor, "floor", "", "be the handler that only answers 204, on this address (bench says so to itself)")
	flags.StringVar(&opts.repository, "repository", ".", "where nginx.conf.example, slotstore and bench are")
	flags.StringVar(&opts.streamcap, "streamcap", "bin/streamcap", "the sidecar's binary")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if opts.floor != "" {
		return report(stderr, serveFloor(ctx, opts.floor))
	}
	if opts.redraw != "" {
		return redraw(opts, stdout, stderr)
	}
	chosen, err := choose(&opts)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	b := &bench{opts: opts, log: stderr, results: &results{
		Began: time.Now().UTC().Truncate(time.Second), Command: command(args), Short: opts.short,
	}}
	b.results.Machine = describeMachine(ctx, opts)
	for _, section := range chosen {
		if ctx.Err() != nil {
			break
		}
		b.logf("%s …", section.name)
		if err := section.measure(ctx, b); err != nil {
			b.logf("%s: %v", section.name, err)
			b.results.Failed = append(b.results.Failed, fmt.Sprintf("%s: %v", section.name, err))
		}
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "bench: interrupted; nothing is written")
		return exitFailed
	}
	b.results.Seconds = time.Since(b.results.Began).Seconds()
	return finish(opts, b.results, stdout, stderr)
}

// finish writes everything and says how it went.
func finish(opts options, r *results, stdout, stderr io.Writer) int {
	r.Verdicts = judge(r)
	if err := r.write(opts.out); err != nil {
		return report(stderr, err)
	}
	if opts.out == opts.path("docs", "bench") { // what is published
		if err := r.writeGuide(opts.path("docs", "capacity.md")); err != nil {
			return report(stderr, err)
		}
	}
	fmt.Fprint(stdout, verdictTable(r))
	fmt.Fprintf(stdout, "\nresults in %s\n", opts.out)
	missed := 0
	for _, v := range r.Verdicts {
		if !v.Reached {
			missed++
		}
	}
	if len(r.Failed) > 0 || opts.strict && missed > 0 {
		return exitFailed
	}
	return exitOK
}

func report(stderr io.Writer, err error) int {
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	return exitOK
}

// redraw writes results anew that were measured before.
func redraw(opts options, stdout, stderr io.Writer) int {
	r, err := readResults(opts.redraw)
	if err != nil {
		return report(stderr, err)
	}
	if opts.out == "" {
		opts.out = filepath.Dir(opts.redraw)
	}
	return finish(opts, r, stdout, stderr)
}

// choose completes the options, and says which sections were asked for.
func choose(opts *options) ([]section, error) {
	for _, path := range []*string{&opts.repository, &opts.streamcap} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	for _, need := range []string{opts.streamcap, opts.path("nginx.conf.example")} {
		if _, err := os.Stat(need); err != nil {
			return nil, fmt.Errorf("%w: make build makes the binary; run from the repository's root", err)
		}
	}
	if opts.pairs < 1 || opts.seconds < 1 {
		return nil, fmt.Errorf("-pairs %d -seconds %d: both are at least 1", opts.pairs, opts.seconds)
	}
	if opts.out == "" {
		opts.out = opts.path("docs", "bench")
		if opts.short || opts.only != "" { // what is published comes from whole runs alone
			opts.out = opts.path(".tmp", "bench")
		}
	}
	if opts.short {
		opts.pairs, opts.seconds = min(opts.pairs, 2), min(opts.seconds, 3)
	}
	if opts.only == "" {
		return sections(), nil
	}
	var chosen []section
	for word := range strings.SplitSeq(opts.only, ",") {
		before := len(chosen)
		for _, section := range sections() {
			if section.name == strings.TrimSpace(word) {
				chosen = append(chosen, section)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("-only %s: there is no such section; peers, datagrams, heartbeats, memory and growth are", word)
		}
	}
	return chosen, nil
}

// path is a file of the repository.
func (o options) path(parts ...string) string {
	return filepath.Join(append([]string{o.repository}, parts...)...)
}

// command is what makes these results again.
func command(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return fmt.Sprintf("make bench ARGS='%s'", strings.Join(args, " "))
}
