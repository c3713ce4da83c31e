package main

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"
)

// fault is a row about trouble under load.
type fault struct {
	name        string
	short, full time.Duration
	world       func(*machine) setup // nil: one Redis, the defaults
	needs       func(*machine) string
	// do lets it happen for s.hold, and returns from when on the store answers (or, for the sidecar's own troubles, from
	// when on it serves).
	do func(ctx context.Context, s *stage) (answers time.Time, err error)

	enforces bool          // the cap holds meanwhile, too: nothing fails open
	quietly  bool          // nobody need be told: nothing fails, or it may not
	sidecar  bool          // it is the sidecar's own trouble: nginx alone is judged, and nginx's log tells of it
	loses    bool          // releases are lost with it, and slots stand for the TTL
	byte     time.Duration // bound on the first byte through nginx; 0: firstByteBound
	back     time.Duration // bound on the time until the cap is enforced again; 0: backBound
	after    time.Duration // how long it is watched afterwards; 0: aftermath
	// afterFull is after in the full form: what was on its way when the network went may come long after it is back.
	afterFull time.Duration
	also      func(s *stage, out *result)
}

// The bounds of the promise. acquireBound is STREAMCAP_ACQUIRE_TIMEOUT and 50 ms.
const (
	acquireBound   = 150 * time.Millisecond
	firstByteBound = 300 * time.Millisecond
	backBound      = time.Second
	failoverBound  = 2 * time.Second
	aftermath      = 2 * time.Second
)

// stall is how long a control request takes when the machine has no time for anybody: a timeout beside one says nothing
// of the sidecar. Control requests ask no store; once it answers again, PINGs on a connection of their own are among them.
const stall = 30 * time.Millisecond

func (f fault) title() string          { return f.name }
func (f fault) shortly() time.Duration { return f.short }
func (f fault) fully() time.Duration   { return f.full }

func (f fault) missing(m *machine) string {
	if f.needs == nil {
		return ""
	}
	return f.needs(m)
}

func (f fault) setup(m *machine) setup {
	if f.world == nil {
		return setup{}
	}
	return f.world(m)
}

func (f fault) play(ctx context.Context, s *stage, out *result) error {
	s.direct.nginxAlone = f.sidecar
	if err := s.busy(ctx); err != nil {
		return err
	}
	s.began = time.Now()
	answers, err := f.do(ctx, s)
	if err != nil {
		return err
	}
	after := max(aftermath, f.after)
	if s.opts.full {
		after = max(after, f.afterFull)
	}
	watching, stop := context.WithTimeout(ctx, after)
	defer stop()
	s.direct.pings(watching, s.redis.address) // until then
	pause(watching, after)
	healthy := eventually(ctx, 3*time.Second, "/healthz says ok again", func() bool {
		return statusOK(s.direct.health(ctx))
	})
	if healthy != nil {
		out.broken("%v: %s", healthy, s.direct.health(ctx))
	}
	s.quiet()
	var left []string
	within := 3 * time.Second
	if f.loses {
		within += s.ttl
	}
	if eventually(ctx, within, "no slot is left", func() bool { left = s.slotsLeft(ctx); return len(left) == 0 }) != nil {
		out.SlotsLeft = len(left)
		out.broken("%d users hold slots of streams that have ended", len(left))
		out.example("%v", left)
	}
	return f.judge(s, answers, out)
}

// judge fills in the row.
func (f fault) judge(s *stage, answers time.Time, out *result) error {
	out.Seconds = answers.Sub(s.began).Seconds()
	asked, control := s.direct.taken()
	noise := noiseOf(control, s.began)
	out.NoiseMS = milliseconds(noise.longest)
	last := answers // until when the cap was not enforced
	denied := 0     // after the time it has for that

	for _, shot := range s.load.taken() {
		if shot.sent.Before(s.began) {
			continue
		}
		out.Requests++
		out.longest(&out.FirstByteMS, shot.first, cmp.Or(f.byte, firstByteBound), "first byte through nginx", shot.sent, noise)
		switch {
		case shot.err != nil || shot.status != http.StatusOK && shot.status != http.StatusTooManyRequests:
			out.Errors++
			out.example("%s: status %d %v %s", shot.user, shot.status, shot.err, shot.body)
		case shot.wrong && shot.kind != overLimit && shot.waiting:
			out.Waiting++
		case shot.wrong && shot.kind != overLimit:
			out.Refused++
			out.example("%s refused %s after the store answered: %s", shot.user, shot.decided().Sub(answers).Round(time.Millisecond), shot.body)
		case (f.enforces || shot.decided().After(answers)) && shot.wrong && noise.near(shot.sent, shot.first) >= stall:
			out.Stalled++
		case shot.wrong && shot.decided().After(answers):
			out.LetThroughAfter++
			last = latest(last, shot.decided())
		case shot.wrong:
			out.LetThrough++
		case shot.kind == overLimit && shot.sent.After(answers.Add(f.backBound())):
			denied++
		}
	}
	for _, ask := range asked {
		if ask.sent.Before(s.began) || f.sidecar && ask.status == 0 {
			continue
		}
		if !f.sidecar {
			out.Acquires++
			out.longest(&out.AcquireMS, ask.took, acquireBound, "acquire at the sidecar", ask.sent, noise)
		}
		switch {
		case ask.status != http.StatusNoContent && ask.status != http.StatusForbidden:
			out.Errors++
			out.example("an acquire at the sidecar: status %d", ask.status)
		case ask.wrong == refused:
			out.Refused++
			out.example("a user's first acquire at the sidecar refused %s after the store answered", ask.decided().Sub(answers).Round(time.Millisecond))
		case (f.enforces || ask.decided().After(answers)) && ask.slot == "failopen" && noise.near(ask.sent, ask.took) >= stall:
			out.Stalled++
		case (f.enforces || ask.decided().After(answers)) && ask.wrong == letThrough && noise.near(ask.sent, ask.took) >= stall:
			// its first acquire is counted already
		case ask.slot == "failopen":
			out.failedOpen(ask.reason)
			if ask.decided().After(answers) {
				last = latest(last, ask.decided())
			}
		case ask.wrong == letThrough && ask.decided().After(answers):
			last = latest(last, ask.decided())
		case ask.status == http.StatusForbidden && ask.sent.After(answers.Add(f.backBound())):
			denied++
		}
	}
	out.BackMS = milliseconds(last.Sub(answers))
	f.bound(out, last.Sub(answers), denied)
	if err := f.told(s, out); err != nil {
		return err
	}
	if f.also != nil {
		f.also(s, out)
	}
	return nil
}

func (f fault) backBound() time.Duration { return cmp.Or(f.back, backBound) }

// bound says which promises the figures break.
func (f fault) bound(out *result, back time.Duration, denied int) {
	if out.Errors > 0 {
		out.broken("%d starts got no stream and no refusal", out.Errors)
	}
	if out.Refused > 0 {
		out.broken("%d refused although under the limit", out.Refused)
	}
	if back > f.backBound() {
		out.broken("the cap is back after %v, promised: %v", back.Round(time.Millisecond), f.backBound())
	}
	if denied < 5 {
		out.broken("the cap is not back: %d refusals of users over their limit in the end", denied)
	}
	if f.enforces && (out.LetThrough > 0 || len(out.FailOpen) > 0) {
		out.broken("%d let through, failing open %v, although the store answered all the time", out.LetThrough, out.FailOpen)
	}
}

// told checks what the operator was told.
func (f fault) told(s *stage, out *result) error {
	lines, err := s.sidecar.lines()
	if err != nil {
		return err
	}
	began := s.began.Truncate(time.Millisecond) // as in the log
	lines = slices.DeleteFunc(lines, func(l logLine) bool { return l.Time.Before(began) || l.Event == "denied" })
	out.LogLines = len(lines)
	opened := make(map[string]bool)
	for _, line := range lines {
		switch line.Event {
		case "not JSON":
			out.broken("the log holds a line that is no JSON")
		case "redis_circuit_open":
			opened[line.Role] = true
			out.StartEvents++
		case "redis_circuit_closed":
			out.EndEvents++
		}
	}
	if f.sidecar {
		out.StartEvents, out.EndEvents = s.nginxFailedOpen()
		out.note("told by nginx's log: streams with slot=failopen, then with slot=held again")
	}
	out.LinesASecond = mostLinesASecond(lines)
	if !f.sidecar && out.StartEvents > len(opened) {
		out.note("breakers flapped: %d opened %d times", len(opened), out.StartEvents)
	}
	if out.LinesASecond > 1 {
		out.broken("%d log lines of one role within a second", out.LinesASecond)
	}
	if !f.quietly && (out.StartEvents == 0 || out.EndEvents == 0) {
		out.broken("%d lines told that it began, %d that it ended", out.StartEvents, out.EndEvents)
	}
	if f.enforces && out.StartEvents > 0 && out.Stalled == 0 {
		out.broken("a breaker opened although the store answered all the time")
	}
	return nil
}

// mostLinesASecond is the most lines that one role wrote within a second, without those that say that something began or
// ended: breakers and self-tests.
func mostLinesASecond(lines []logLine) int {
	times := make(map[string][]time.Time)
	for _, line := range lines {
		switch line.Event {
		case "self_test", "redis_circuit_open", "redis_circuit_closed":
		default:
			if line.Role != "" {
				times[line.Role] = append(times[line.Role], line.Time)
			}
		}
	}
	most := 0
	for _, at := range times {
		for i := range at {
			n := 1
			for n+i < len(at) && at[i+n].Sub(at[i]) < 990*time.Millisecond {
				n++
			}
			most = max(most, n)
		}
	}
	return most
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// noise is how long control requests took that ask no store.
type noise struct {
	control []ask
	longest time.Duration
}

func noiseOf(control []ask, since time.Time) noise {
	n := noise{control: control}
	for _, c := range control {
		if c.sent.After(since) {
			n.longest = max(n.longest, c.took)
		}
	}
	return n
}

// near is the longest control request that was under way within 100 ms of [at, at+took].
func (n noise) near(at time.Time, took time.Duration) (longest time.Duration) {
	const around = 100 * time.Millisecond
	for _, c := range n.control {
		if c.sent.Before(at.Add(took+around)) && c.decided().After(at.Add(-around)) {
			longest = max(longest, c.took)
		}
	}
	return longest
}
