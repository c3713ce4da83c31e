package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// within says whether something of that kind happened at that time, or was just over: what it does to users may last for
// as long as the cap may take to be back.
func (k *soaking) within(at time.Time, kind func(trouble) bool) bool {
	return slices.ContainsFunc(k.happened, func(i incident) bool {
		return kind(i.trouble) && at.After(i.from) && at.Before(i.to.Add(backBound))
	})
}

func cuts(t trouble) bool  { return t.cuts }
func ends(t trouble) bool  { return t.cuts || t.ends }
func opens(t trouble) bool { return t.opens }

// tally is what became of the starts.
type tally struct {
	starts, held, failedOpen int
	denied                   int // over the limit, as it should be
	broke                    int // with what was killed, or told to stop, under them
	passed, stalled          int // let through over the limit in a trouble, or while the machine had no time
	waited                   int // refused while the releases of their streams were under way

	failed, refused, through int // promises broken: no answer, refused under the limit, let through over it
	first                    []time.Duration
}

// judge looks at what became of each start until ended.
func (k *soaking) judge(ended time.Time, out *result) {
	asked, control := k.direct.taken()
	// What a control request waits for in a trouble of Redis is Redis.
	control = slices.DeleteFunc(control, func(c ask) bool { return k.within(c.decided(), opens) })
	machine := noiseOf(control, k.began)
	var t tally
	for _, shot := range k.load.taken() {
		if shot.sent.After(k.began) && shot.decided().Before(ended) && shot.ended.Before(ended) {
			k.count(&t, shot, machine, out)
		}
	}
	for _, ask := range asked { // at the sidecar that is restarted
		if ask.wrong == refused && ask.sent.After(k.began) && ask.sent.Before(ended) {
			t.refused++
			out.example("a user's first acquire at the sidecar, %s: refused", k.at(ask.sent))
		}
	}
	none := func(n int, what string) { out.figure(n == 0, what, fmt.Sprint(n), "0") }
	none(t.failed, fmt.Sprintf("5xx, broken off or without an answer, of %d starts", t.starts))
	none(t.refused, "refused although under the limit")
	none(t.through, "let through over the limit while all was well")
	none(k.over, "users seen in Redis with more slots than they may have")
	out.figure(t.denied > t.starts/10, "refused over the limit", fmt.Sprint(t.denied), "a tenth and more")
	out.note("%d starts held a slot, %d failed open; first byte p50 %v, p99 %v, longest %v; control requests up to %v", t.held, t.failedOpen,
		round(percentile(t.first, 50)), round(percentile(t.first, 99)), round(percentile(t.first, 100)), round(machine.longest))
	out.note("%d streams got a 502, broke off or ended early with what was killed, or told to stop, under them", t.broke)
	out.note("%d let through over the limit in a trouble, or within %v of it; %d as soon after control requests that took %v and more",
		t.passed, backBound, t.stalled, stall)
	if t.waited > 0 {
		out.note("%d refused within %v of Redis coming back, while the releases of their streams were under way", t.waited, grace)
	}
	k.tell(out)
}

// count adds one start to the tally.
func (k *soaking) count(t *tally, s shot, machine noise, out *result) {
	until := latest(s.decided(), s.ended)
	if s.goneOn() {
		if k.within(until, ends) {
			t.broke++
		} else {
			t.failed++
			out.example("%s, %s: %v", s.user, k.at(s.sent), s.err)
		}
		return
	}
	t.starts++
	t.first = append(t.first, s.first)
	switch s.slot {
	case "held":
		t.held++
	case "failopen":
		t.failedOpen++
	}
	failed := s.err != nil || s.status != http.StatusOK && s.status != http.StatusTooManyRequests
	switch {
	case failed && k.within(until, cuts):
		t.broke++
	case failed:
		t.failed++
		out.example("%s, %s: status %d %v %s", s.user, k.at(s.sent), s.status, s.err, s.body)
	case s.wrong && s.kind != overLimit && s.waiting:
		t.waited++
	case s.wrong && s.kind != overLimit:
		t.refused++
		out.example("%s, %s: refused: %s", s.user, k.at(s.sent), s.body)
	case s.wrong && k.within(s.decided(), opens):
		t.passed++
	case s.wrong && machine.near(s.sent.Add(-backBound), backBound+s.first) >= stall: // it may have opened a breaker
		t.stalled++
	case s.wrong:
		t.through++
		out.example("%s, %s: let through, %s %s", s.user, k.at(s.sent), s.slot, s.reason)
	case s.kind == overLimit:
		t.denied++
	}
}

// goneOn says that this is no start, but the end of a stream that should have gone on.
func (s shot) goneOn() bool { return s.kind == holding && s.sent.Equal(s.ended) }

// at says when something was, for people.
func (k *soaking) at(t time.Time) string {
	text := fmt.Sprintf("%.1f s into the soak", t.Sub(k.began).Seconds())
	for _, i := range slices.Backward(k.happened) {
		if i.to.Before(t) {
			return fmt.Sprintf("%s, %.1f s after: %s", text, t.Sub(i.to).Seconds(), i.name)
		}
	}
	return text
}

// tell counts what happened.
func (k *soaking) tell(out *result) {
	var told []string
	for _, t := range soakTroubles() {
		count, took := 0, time.Duration(0)
		for _, i := range k.happened {
			if i.name == t.name {
				count++
				took += i.to.Sub(i.from)
			}
		}
		told = append(told, fmt.Sprintf("%d × %s (%v)", count, t.name, (took/time.Duration(max(count, 1))).Round(time.Millisecond)))
	}
	out.note("%s", strings.Join(told, "; "))
}

// readLogs wants nothing but JSON in the sidecars' logs: a panic is none.
func (k *soaking) readLogs(out *result) error {
	odd, count := 0, 0
	for _, w := range k.stacks {
		lines, err := w.sidecar.lines()
		if err != nil {
			return err
		}
		for _, line := range lines {
			count++
			if line.Event == "not JSON" {
				odd++
			}
		}
	}
	out.figure(odd == 0, fmt.Sprintf("lines of the sidecars' logs, of %d, that are no JSON", count), fmt.Sprint(odd), "0")
	return nil
}
