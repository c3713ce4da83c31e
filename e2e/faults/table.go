package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// result is one row as it came out.
type result struct {
	Name        string  `json:"name"`
	Seconds     float64 `json:"seconds"` // how long the fault lasted
	TookSeconds float64 `json:"took_seconds"`

	Requests        int            `json:"requests"`           // stream starts through nginx, from the fault's begin on
	Acquires        int            `json:"acquires"`           // at the sidecar itself
	Errors          int            `json:"errors"`             // 5xx, broken off, or no answer
	AcquireMS       float64        `json:"longest_acquire_ms"` // at the sidecar itself
	FirstByteMS     float64        `json:"longest_first_byte_ms"`
	NoiseMS         float64        `json:"noise_ms"` // the longest control request
	Excused         int            `json:"excused"`  // over a bound, by no more than control requests took at that time
	Refused         int            `json:"refused_under_limit"`
	Stalled         int            `json:"let_through_while_the_machine_stalled"`
	Waiting         int            `json:"refused_while_releases_waited"`
	LetThrough      int            `json:"let_through_while_it_lasted"`
	LetThroughAfter int            `json:"let_through_afterwards"`
	FailOpen        map[string]int `json:"failed_open,omitempty"` // by reason, at the sidecar itself
	BackMS          float64        `json:"enforcing_after_ms"`
	SlotsLeft       int            `json:"slots_left"` // of streams that have ended

	StartEvents  int `json:"start_events"`
	EndEvents    int `json:"end_events"`
	LogLines     int `json:"log_lines"`
	LinesASecond int `json:"lines_a_second_and_role"`

	Figures  []figure `json:"figures,omitempty"` // of checks
	Series   []series `json:"series,omitempty"`  // of a soak
	Notes    []string `json:"notes,omitempty"`
	Examples []string `json:"examples,omitempty"`
	Broken   []string `json:"broken,omitempty"`
	Missing  string   `json:"missing,omitempty"`

	over map[string]overBound
}

// figure is one measured value and its bound.
type figure struct {
	What  string `json:"what"`
	Value string `json:"value"`
	Bound string `json:"bound"`
	OK    bool   `json:"ok"`
}

type overBound struct {
	worst, bound time.Duration
	count        int
}

func (r *result) broken(format string, args ...any) {
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

func (r *result) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// example keeps the first few of what went wrong.
func (r *result) example(format string, args ...any) {
	if len(r.Examples) < 5 {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}

// figure adds a value that a check has measured.
func (r *result) figure(ok bool, what, value, bound string) {
	r.Figures = append(r.Figures, figure{what, value, bound, ok})
	if !ok {
		r.broken("%s: %s, promised: %s", what, value, bound)
	}
}

func (r *result) failedOpen(reason string) {
	if r.FailOpen == nil {
		r.FailOpen = make(map[string]int)
	}
	r.FailOpen[reason]++
}

// longest takes one duration that has a bound. What is over it by no more than control requests took at that very time
// is the machine's, not the product's: it is counted and shown.
func (r *result) longest(most *float64, took, bound time.Duration, what string, at time.Time, n noise) {
	*most = max(*most, milliseconds(took))
	if took <= bound {
		return
	}
	if took-n.near(at, took) <= bound {
		r.Excused++
		return
	}
	if r.over == nil {
		r.over = make(map[string]overBound)
	}
	o := r.over[what]
	r.over[what] = overBound{max(o.worst, took), bound, o.count + 1}
}

// close turns what was over its bound into broken promises.
func (r *result) close() {
	for what, o := range r.over {
		r.broken("%d × longest %s %v, promised: %v", o.count, what, o.worst.Round(time.Millisecond), o.bound)
	}
	if r.Stalled > 0 {
		r.note("%d let through while control requests, which ask no store, took %v and more (up to %.0f ms)", r.Stalled, stall, r.NoiseMS)
	}
	if r.Waiting > 0 {
		r.note("%d refused within a second of the sidecar going on, while the releases of their streams waited in its sockets", r.Waiting)
	}
	if r.Excused > 0 {
		r.note("%d requests over a bound by less than control requests took at that time (up to %.0f ms)", r.Excused, r.NoiseMS)
	}
}

// report prints the table and returns the exit code.
func report(results []result, opts options, stdout, stderr io.Writer) int {
	printFaults(stdout, results)
	printChecks(stdout, results)
	printSeries(stdout, results)
	for _, r := range results {
		for _, note := range r.Notes {
			fmt.Fprintf(stdout, "- %s: %s\n", r.Name, note)
		}
	}
	code := exitOK
	for _, r := range results {
		if r.Missing != "" {
			fmt.Fprintf(stdout, "- MISSING %s: %s\n", r.Name, r.Missing)
			if !opts.allowMissing {
				code = exitBroken
			}
		}
		for _, broken := range r.Broken {
			fmt.Fprintf(stdout, "- BROKEN %s: %s\n", r.Name, broken)
			code = exitBroken
		}
		for _, example := range r.Examples {
			fmt.Fprintf(stdout, "    e.g. %s\n", example)
		}
	}
	if opts.json != "" {
		if err := writeJSON(opts.json, results); err != nil {
			fmt.Fprintln(stderr, "faults:", err)
			return exitBroken
		}
	}
	return code
}

func printFaults(w io.Writer, results []result) {
	lines := [][]string{{
		"fault", "s", "requests", "5xx", "longest acquire", "longest first byte", "control", "refused under",
		"let through over, while", "after", "enforcing again after", "slots left", "told: start, end", "log lines", "a second and role", "",
	}}
	for _, r := range results {
		if r.Requests == 0 && (len(r.Figures) > 0 || r.Missing == "" && len(r.Broken) == 0) {
			continue // a check without load
		}
		acquire := "-"
		if r.Acquires > 0 {
			acquire = fmt.Sprintf("%.0f ms", r.AcquireMS)
		}
		lines = append(lines, []string{
			r.Name, fmt.Sprintf("%.1f", r.Seconds), fmt.Sprint(r.Requests), fmt.Sprint(r.Errors), acquire,
			fmt.Sprintf("%.0f ms", r.FirstByteMS), fmt.Sprintf("%.0f ms", r.NoiseMS), fmt.Sprint(r.Refused),
			fmt.Sprint(r.LetThrough), fmt.Sprint(r.LetThroughAfter), fmt.Sprintf("%.0f ms", r.BackMS), fmt.Sprint(r.SlotsLeft),
			fmt.Sprintf("%d, %d", r.StartEvents, r.EndEvents), fmt.Sprint(r.LogLines), fmt.Sprint(r.LinesASecond), r.state(),
		})
	}
	if len(lines) > 1 {
		printTable(w, lines)
	}
}

func (r *result) state() string {
	switch {
	case r.Missing != "":
		return "missing"
	case len(r.Broken) > 0:
		return "BROKEN"
	}
	return "ok"
}

func printChecks(w io.Writer, results []result) {
	lines := [][]string{{"check", "what", "figure", "promised", ""}}
	for _, r := range results {
		for _, f := range r.Figures {
			state := "ok"
			if !f.OK {
				state = "BROKEN"
			}
			lines = append(lines, []string{r.Name, f.What, f.Value, f.Bound, state})
		}
	}
	if len(lines) > 1 {
		printTable(w, lines)
	}
}

// printTable writes Markdown whose columns stand under each other.
func printTable(w io.Writer, lines [][]string) {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	fmt.Fprintln(w)
	for n, line := range lines {
		for i, cell := range line {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
		if n == 0 {
			for _, width := range widths {
				fmt.Fprintf(w, "| %s ", strings.Repeat("-", max(3, width)))
			}
			fmt.Fprintln(w, "|")
		}
	}
	fmt.Fprintln(w)
}

func writeJSON(path string, results []result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
