package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// faults are the rows about trouble under load.
func faults() []fault {
	return append(storeFaults(), append(networkFaults(), append(failovers(), sidecarFaults()...)...)...)
}

// storeFaults are the troubles of Redis itself.
func storeFaults() []fault {
	return []fault{
		{name: "CLIENT PAUSE", short: 2 * time.Second, full: 6 * time.Second, do: clientPause},
		{name: "maxmemory, noeviction, full", short: 2 * time.Second, full: 6 * time.Second, do: outOfMemory},
		{name: "SIGSTOP of Redis", short: 3 * time.Second, full: 70 * time.Second, do: stopped},
		{name: "SIGKILL of Redis, empty restart", short: 1500 * time.Millisecond, full: 5 * time.Second, do: killed},
		{name: "SCRIPT FLUSH every 10 ms", short: 2 * time.Second, full: 5 * time.Second, do: scriptFlush, enforces: true, quietly: true},
		{name: "260 foreign SETs of 2 MiB in flight", full: 10 * time.Second, do: foreignSets, enforces: true, quietly: true, also: besidePing},
	}
}

func clientPause(ctx context.Context, s *stage) (time.Time, error) {
	if err := s.redis.do(ctx, "CLIENT", "PAUSE", s.hold.Milliseconds(), "ALL"); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold-200*time.Millisecond)
	return s.redis.answers(ctx, 5*time.Second)
}

// outOfMemory fills Redis to its limit, to the last hundred bytes, and goes on trying: what the slots give back is soon
// somebody else's.
func outOfMemory(ctx context.Context, s *stage) (time.Time, error) {
	for _, order := range [][]any{
		{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, {"CONFIG", "SET", "maxmemory", "30mb"},
	} {
		if err := s.redis.do(ctx, order...); err != nil {
			return time.Time{}, err
		}
	}
	var end time.Time
	for i, size := 0, 512<<10; end.IsZero() || time.Now().Before(end); i++ {
		err := s.redis.do(ctx, "SET", fmt.Sprintf("foreign:%d", i), strings.Repeat("x", size))
		switch {
		case err == nil:
		case !strings.Contains(err.Error(), "OOM"):
			return time.Time{}, err
		case size > 100:
			size /= 4
		case end.IsZero():
			s.began, end = time.Now(), time.Now().Add(s.hold)
		default:
			pause(ctx, time.Millisecond)
		}
	}
	err := s.redis.do(ctx, "CONFIG", "SET", "maxmemory", "0")
	return time.Now(), err
}

func stopped(ctx context.Context, s *stage) (time.Time, error) {
	if err := s.redis.signal(syscall.SIGSTOP); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	if s.hold > s.ttl {
		s.lost() // no heartbeat came through for longer than the slots live
	}
	if err := s.redis.signal(syscall.SIGCONT); err != nil {
		return time.Time{}, err
	}
	return s.redis.answers(ctx, 5*time.Second)
}

func killed(ctx context.Context, s *stage) (time.Time, error) {
	if err := s.redis.end(syscall.SIGKILL); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	s.lost()
	err := s.startRedisAgain(ctx, s.redis)
	return time.Now(), err
}

func scriptFlush(ctx context.Context, s *stage) (time.Time, error) {
	for end := time.Now().Add(s.hold); time.Now().Before(end); pause(ctx, 10*time.Millisecond) {
		if err := s.redis.do(ctx, "SCRIPT", "FLUSH"); err != nil {
			return time.Time{}, err
		}
	}
	return time.Now(), nil
}

// networkFaults are the troubles on the way to Redis and back.
func networkFaults() []fault {
	proxied := func(*machine) setup { return setup{proxied: true} }
	withoutFirewall := func(m *machine) setup { return setup{proxied: m.firewall != ""} }
	return []fault{
		{name: "blackhole", short: 2 * time.Second, full: 10 * time.Second, world: withoutFirewall, do: blackhole, afterFull: 20 * time.Second},
		{name: "REJECT", full: 6 * time.Second, world: withoutFirewall, do: rejected},
		{name: "100 ms of latency", short: 2 * time.Second, full: 10 * time.Second, world: proxied, do: spoiled(
			func(answer []byte) ([]byte, time.Duration, bool) { return answer, 100 * time.Millisecond, false })},
		{name: "30 ms of latency", full: 6 * time.Second, world: proxied, enforces: true, quietly: true, do: spoiled(
			func(answer []byte) ([]byte, time.Duration, bool) { return answer, 30 * time.Millisecond, false })},
		{name: "replies delayed by 0 to 1.5 s", full: 6 * time.Second, world: proxied, do: spoiled(
			func(answer []byte) ([]byte, time.Duration, bool) {
				return answer, rand.N(1500 * time.Millisecond), false // any will do
			})},
		{name: "replies cut off", full: 6 * time.Second, world: proxied, do: spoiled(
			func(answer []byte) ([]byte, time.Duration, bool) { return answer[:len(answer)/2], 0, true })},
		{name: "nonsense for replies", short: 2 * time.Second, full: 6 * time.Second, world: proxied, do: spoiled(nonsense())},
	}
}

// blackhole swallows every packet to Redis; where there is no firewall of ours, every answer.
func blackhole(ctx context.Context, s *stage) (time.Time, error) {
	if s.proxy != nil {
		return spoiled(func([]byte) ([]byte, time.Duration, bool) { return nil, 0, false })(ctx, s)
	}
	return walled(ctx, s, s.machine.drop)
}

// rejected refuses connections to Redis and resets those that are open.
func rejected(ctx context.Context, s *stage) (time.Time, error) {
	if s.proxy != nil {
		return spoiled(func([]byte) ([]byte, time.Duration, bool) { return nil, 0, true })(ctx, s)
	}
	return walled(ctx, s, s.machine.reject)
}

func walled(ctx context.Context, s *stage, wall func(string) (func() error, error)) (time.Time, error) {
	undo, err := wall(s.redis.address)
	if err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	if err := undo(); err != nil {
		return time.Time{}, err
	}
	return s.redis.answers(ctx, 5*time.Second)
}

// spoiled spoils the answers for a while.
func spoiled(spoil spoiler) func(context.Context, *stage) (time.Time, error) {
	return func(ctx context.Context, s *stage) (time.Time, error) {
		s.proxy.use(spoil)
		pause(ctx, s.hold)
		s.proxy.use(nil)
		return time.Now(), nil
	}
}

// nonsense answers with one thing after another that can't be an answer to what was asked, some of them several at once.
func nonsense() spoiler {
	replies := []string{
		"what?\r\n", "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "$-7\r\n", "*3\r\n", "*-1\r\n",
		"+OK\r\n+OK\r\n+OK\r\n", "*4\r\n$1\r\nx\r\n$1\r\ny\r\n$1\r\nz\r\n$1\r\n!\r\n", "$9999999999\r\n", "\x00\x01\x02\xff",
		"-\r\n", string(bytes.Repeat([]byte("*1\r\n"), 100)),
	}
	var n atomic.Int64
	return func([]byte) ([]byte, time.Duration, bool) {
		return []byte(replies[int(n.Add(1))%len(replies)]), 0, false
	}
}
