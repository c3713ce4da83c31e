// Command faults lets every kind of trouble happen to Redis and to the sidecar under a steady load of stream starts
// through nginx, and prints what clients and operators saw of it: one kind after the other, or with -soak all kinds at
// random. It exits with 1 where a promise was broken.
//
// Traffic stays on loopback. Where the machine allows it, everything runs in namespaces of its own: ports, firewall rules
// and name servers are then nobody else's, and nothing outlives the suite.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	exitOK     = 0
	exitBroken = 1 // a promise was broken, or a fault could not be made
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
	full         bool
	only         string
	soak         time.Duration
	seed         uint64
	rate         int
	json         string
	allowMissing bool
	list         bool
	keep         bool
	inside       bool
	apart        bool
	streamcap    string
	backend      string
	nginxConf    string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts := options{}
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&opts.full, "full", false, "all faults at their full length (half an hour); else the short form")
	flags.StringVar(&opts.only, "only", "", "run only the rows whose name holds one of these words, comma-separated")
	flags.DurationVar(&opts.soak, "soak", 0, "instead of all rows: steady load for so long, with deploys, kills and restarts at random")
	flags.Uint64Var(&opts.seed, "seed", rand.Uint64N(1_000_000), "which of them happen, and when, in a soak")
	flags.IntVar(&opts.rate, "rate", 60, "stream starts a second through nginx")
	flags.StringVar(&opts.json, "json", "", "write the rows to this file, too")
	flags.BoolVar(&opts.allowMissing, "allow-missing", false, "a fault that this machine can't make is no failure")
	flags.BoolVar(&opts.list, "list", false, "list the rows and end")
	flags.BoolVar(&opts.keep, "keep", false, "keep the logs of rows that hold, too")
	flags.BoolVar(&opts.apart, "apart", true, "run in namespaces of its own where that is possible")
	flags.BoolVar(&opts.inside, "inside", false, "this process is in them (the suite says so to itself)")
	flags.StringVar(&opts.streamcap, "streamcap", "bin/streamcap", "the sidecar's binary")
	flags.StringVar(&opts.backend, "backend", "bin/backend", "the demo backend's binary")
	flags.StringVar(&opts.nginxConf, "nginx-conf", "nginx.conf.example", "the configuration that nginx runs with")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	rows := chosen(opts)
	if opts.list || len(rows) == 0 {
		for _, row := range rows {
			fmt.Fprintln(stdout, row.title())
		}
		return exitOK
	}
	for _, path := range []*string{&opts.streamcap, &opts.backend, &opts.nginxConf} {
		absolute, err := filepath.Abs(*path)
		if err == nil {
			_, err = os.Stat(absolute)
		}
		if err != nil {
			fmt.Fprintf(stderr, "faults: %v: make build makes the binaries; run from the repository's root\n", err)
			return exitUsage
		}
		*path = absolute
	}
	if opts.apart && !opts.inside {
		code, err := runInside(ctx, args, stdout, stderr)
		if err == nil {
			return code
		}
		fmt.Fprintf(stderr, "faults: no namespaces of our own here (%v): firewall and name server are out of reach\n", err)
	}
	machine, err := prepare(opts.inside)
	if errors.Is(err, errNotApart) {
		fmt.Fprintln(stderr, "faults:", err)
		return exitNotApart
	}
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return exitUsage
	}
	if opts.soak > 0 {
		fmt.Fprintf(stderr, "faults: %s\n", rows[0].title())
	}
	return report(runAll(ctx, rows, opts, machine, stderr), opts, stdout, stderr)
}

// chosen are the rows of the form that was asked for.
func chosen(opts options) []row {
	if opts.soak > 0 {
		return []row{soak{opts.soak, opts.seed}}
	}
	words := strings.FieldsFunc(opts.only, func(r rune) bool { return r == ',' })
	return slices.DeleteFunc(allRows(), func(r row) bool {
		if len(words) > 0 {
			return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(r.title(), word) })
		}
		return !opts.full && r.shortly() == 0
	})
}

// runAll runs row after row; one that fails does not stop the next.
func runAll(ctx context.Context, rows []row, opts options, machine *machine, stderr io.Writer) []result {
	results := make([]result, 0, len(rows))
	for _, row := range rows {
		if ctx.Err() != nil {
			return append(results, result{Name: row.title(), Broken: []string{"interrupted"}})
		}
		outcome := runOne(ctx, row, opts, machine, stderr)
		state := "ok"
		if len(outcome.Broken) > 0 {
			state = strings.Join(outcome.Broken, "; ")
		} else if outcome.Missing != "" {
			state = "missing: " + outcome.Missing
		}
		fmt.Fprintf(stderr, "faults: %-44s %5.1f s  %s\n", outcome.Name, outcome.TookSeconds, state)
		results = append(results, outcome)
	}
	return results
}
