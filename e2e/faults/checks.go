package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// check is a row that measures one promise.
type check struct {
	name  string
	short bool // part of the short form
	world func(*machine) setup
	needs func(*machine) string
	do    func(ctx context.Context, s *stage, out *result) error
}

func (c check) title() string { return c.name }

func (c check) shortly() time.Duration {
	if c.short {
		return time.Second
	}
	return 0
}

func (c check) missing(m *machine) string {
	if c.needs == nil {
		return ""
	}
	return c.needs(m)
}

func (c check) setup(m *machine) setup {
	if c.world == nil {
		return setup{}
	}
	return c.world(m)
}

func (c check) play(ctx context.Context, s *stage, out *result) error { return c.do(ctx, s, out) }

func checks() []check {
	return append([]check{
		{name: "200 aborted acquires (F08)", short: true, do: aborted},
		{name: "10,000 acquires in an outage (F12)", do: logFlood},
		{name: "500 acquires, 100 at once, into a blackhole (F01)", do: burst, needs: func(m *machine) string { return m.firewall }},
		{name: "heartbeat flood of 20,000 slots/s", do: heartbeatFlood},
	}, starts()...)
}

// aborted has clients hang up in the middle of 200 acquires in a row, and of 200 streams: nobody's failure. A slot whose
// client left after the answer was written stands for the TTL, unless nginx tells of its end.
func aborted(ctx context.Context, s *stage, out *result) error {
	const atSidecar, atNginx = "free-acquires", "free-streams"
	for i := range 400 {
		address := s.sidecar.listen
		request := fmt.Sprintf("GET /acquire HTTP/1.1\r\nHost: s\r\nX-User-Id: %s\r\nX-Request-Id: abort-%d\r\n\r\n", atSidecar, i)
		if i >= 200 {
			address = s.nginx
			request = fmt.Sprintf("GET /stream/x HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer %s\r\n\r\n", atNginx)
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte(request))
		pause(ctx, time.Duration(i%5)*500*time.Microsecond)
		_ = conn.Close() // that is the point
		if err != nil {
			return err
		}
		if i%40 == 0 && !breakersClosed(s.direct.health(ctx)) {
			out.broken("after %d: %s", i, s.direct.health(ctx))
		}
	}
	health, state := s.direct.health(ctx), "closed"
	if !breakersClosed(health) {
		state = health
	}
	out.figure(state == "closed", "breakers after 200 aborted acquires and 200 aborted streams", state, "all closed")
	pause(ctx, grace)
	s.direct.acquire(atSidecar, "first") // it may be over the limit already
	over := s.direct.acquire(atSidecar, "second")
	out.figure(over.slot == "denied", "then a second acquire of the user of the acquires", over.slot, "denied")
	first, second := s.direct.acquire(atNginx, "first"), s.direct.acquire(atNginx, "second")
	out.figure(first.slot == "held" && second.slot == "denied", "then two acquires of the user of the streams",
		first.slot+", "+second.slot, "held, denied")
	lines, err := s.sidecar.lines()
	for _, line := range lines {
		if line.Event == "redis_circuit_open" {
			out.broken("the log has redis_circuit_open")
		}
	}
	return err
}

// breakersClosed reads what /healthz says.
func breakersClosed(health string) bool {
	var report struct {
		Roles map[string]struct{ Breaker string }
	}
	if json.Unmarshal([]byte(health), &report) != nil || len(report.Roles) == 0 {
		return false
	}
	for _, role := range report.Roles {
		if role.Breaker != "closed" {
			return false
		}
	}
	return true
}

func statusOK(health string) bool { return strings.Contains(health, `"status":"ok"`) }

// logFlood asks 10,000 times while Redis is stopped. At most one line a second for each role is promised besides, so
// the acquires come as fast as the sidecar answers.
func logFlood(ctx context.Context, s *stage, out *result) error {
	if err := s.redis.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	began := time.Now()
	var wrong atomic.Int64
	s.together(50, 10_000, func(i int) {
		if a := s.direct.acquire(fmt.Sprintf("flood-%d", i), "r"); a.slot != "failopen" {
			wrong.Add(1)
		}
	})
	took := time.Since(began)
	if err := s.redis.signal(syscall.SIGCONT); err != nil {
		return err
	}
	err := eventually(ctx, 5*time.Second, "/healthz says ok again", func() bool { return statusOK(s.direct.health(ctx)) })
	if err != nil {
		return err
	}
	lines, err := s.sidecar.lines()
	count, opened, closed := 0, 0, 0
	for _, line := range lines {
		if line.Time.Before(began.Truncate(time.Millisecond)) {
			continue
		}
		count++
		switch line.Event {
		case "redis_circuit_open":
			opened++
		case "redis_circuit_closed":
			closed++
		}
	}
	out.figure(wrong.Load() == 0, "acquires that did not fail open", fmt.Sprint(wrong.Load()), "0")
	out.figure(count <= 20, fmt.Sprintf("log lines for 10,000 acquires within %v", took.Round(time.Millisecond)), fmt.Sprint(count), "<= 20")
	out.figure(opened > 0 && closed == opened, "breakers that opened, closed", fmt.Sprintf("%d, %d", opened, closed), "as many")
	return err
}

// together runs n calls, so many of them at once.
func (s *stage) together(atOnce, n int, call func(i int)) {
	var next atomic.Int64
	var work sync.WaitGroup
	for range atOnce {
		work.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				call(int(i))
			}
		})
	}
	work.Wait()
}

// burst asks 500 times, 100 at once, while packets to Redis are dropped.
func burst(ctx context.Context, s *stage, out *result) error {
	undo, err := s.machine.drop(s.redis.address)
	if err != nil {
		return err
	}
	controlling, stop := context.WithCancel(ctx)
	var controls sync.WaitGroup
	began := time.Now()
	controls.Go(func() { every(controlling, 20*time.Millisecond, func(int) { s.direct.controls() }) })
	took := make([]time.Duration, 500)
	var odd atomic.Int64
	ask := func(i int) {
		a := s.direct.acquire(fmt.Sprintf("burst-%d", i), "r")
		took[i-1] = a.took
		if a.status != http.StatusNoContent {
			odd.Add(1)
		}
	}
	s.together(100, len(took), ask)
	first := percentile(took, 99)
	s.together(10, len(took), ask)
	stop()
	controls.Wait()
	_, control := s.direct.taken()
	machine := noiseOf(control, began).longest
	out.figure(odd.Load() == 0, "answers other than 204", fmt.Sprint(odd.Load()), "0")
	out.figure(first <= acquireBound+machine, "p99 while the breaker opens",
		fmt.Sprintf("%v, control requests up to %v", round(first), round(machine)), "<= "+acquireBound.String())
	open := percentile(took, 99)
	out.figure(open < 10*time.Millisecond+machine, "p99 with the breaker open, 10 at once", round(open).String(), "< 10ms")
	return undo()
}
