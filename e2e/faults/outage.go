package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// outage is a long one: what the sidecar keeps for later must not grow with it.
func outage() fault {
	return fault{name: "outage under load", full: 10 * time.Minute, do: longOutage, also: memoryFlat}
}

// rss is what the sidecar's memory was.
type rss struct{ start, early, end int } // kB

func longOutage(ctx context.Context, s *stage) (time.Time, error) {
	if err := s.redis.signal(syscall.SIGSTOP); err != nil {
		return time.Time{}, err
	}
	early := min(time.Minute, s.hold/2)
	for _, step := range []struct {
		wait time.Duration
		kB   *int
	}{{0, &s.memory.start}, {early, &s.memory.early}, {s.hold - early, &s.memory.end}} {
		pause(ctx, step.wait)
		var err error
		if *step.kB, err = s.sidecar.status("VmRSS"); err != nil {
			return time.Time{}, err
		}
	}
	if s.hold > s.ttl {
		s.lost() // no heartbeat came through for longer than the slots live
	}
	if err := s.redis.signal(syscall.SIGCONT); err != nil {
		return time.Time{}, err
	}
	return s.redis.answers(ctx, 5*time.Second)
}

// memoryFlat compares memory, and counts goroutines: those of the sidecar that went through the outage, once its callers
// are gone, beside those of one that has just started.
func memoryFlat(s *stage, out *result) {
	const slackKB = 16 << 10
	m := s.memory
	out.figure(m.end <= m.early+m.early/10+slackKB, "RSS at start, early, end",
		fmt.Sprintf("%d, %d, %d MiB", m.start>>10, m.early>>10, m.end>>10), "end <= 1.1 × early + 16 MiB")
	fresh, err := s.startSidecar(context.Background(), s.sidecar.settings)
	if err != nil {
		out.broken("a second sidecar: %v", err)
		return
	}
	for _, p := range s.processes {
		if strings.HasPrefix(p.name, "nginx") || strings.HasPrefix(p.name, "backend") {
			p.stopNow(syscall.SIGTERM)
		}
	}
	s.direct.client.CloseIdleConnections()
	time.Sleep(3 * time.Second) // late replies, probes and the sides of closed connections come to their end
	threads, err := s.sidecar.status("Threads")
	if err != nil {
		out.broken("%v", err)
	}
	old, errOld := s.sidecar.metric("go_goroutines")
	young, errYoung := fresh.metric("go_goroutines")
	if errOld != nil || errYoung != nil {
		out.broken("goroutines: %v, %v", errOld, errYoung)
		return
	}
	out.note("%d threads in the end", threads)
	out.figure(old <= young+5, "goroutines after it, and of a sidecar that has just started", fmt.Sprintf("%.0f, %.0f", old, young), "<= 5 more")
}
