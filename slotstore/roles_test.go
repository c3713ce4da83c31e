package slotstore

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// idle is a role whose connections are all busy: nobody takes from its queue.
func idle(events Events) *role {
	return &role{
		condition: newCondition(RoleAcquire, events), budget: 100 * time.Millisecond,
		queue: make(chan *call, 2), stop: make(chan struct{}),
	}
}

func TestWhatWasNeverSentIsNotSentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := idle(Events{})
		c := newCall(acquireScript, 1).with([]string{"key"}, "argument")
		c.late = func() { t.Error("a call that was never sent is nobody's to undo") }
		start := time.Now()
		if err := r.do(t.Context(), c); !errors.Is(err, errOverload) || time.Since(start) != r.budget {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if calls := r.collect(<-r.queue); len(calls) != 0 {
			t.Errorf("%d calls would be sent", len(calls))
		}
		if waiting := r.waiting.Load(); waiting != 0 {
			t.Errorf("%d bytes are said to wait", waiting)
		}
		if r.unwell() {
			t.Error("our own overload has made the role unwell")
		}
	})
}

func TestQueueIsBoundedByCountAndBytes(t *testing.T) {
	r := idle(Events{})
	ended, end := context.WithCancel(t.Context())
	end() // nobody waits
	for range 2 {
		if err := r.do(ended, newCall(acquireScript, 0)); !errors.Is(err, errOverload) {
			t.Fatal(err)
		}
	}
	if err := r.do(ended, newCall(acquireScript, 0)); !errors.Is(err, errQueue) {
		t.Errorf("a third call in a queue of two: %v", err)
	}
	large := newCall(heartbeatScript, 1).with([]string{"key"}, string(make([]byte, queueBytes)))
	if err := idle(Events{}).do(ended, large); !errors.Is(err, errQueue) {
		t.Errorf("a call over the bytes: %v", err)
	}
	if waiting := r.waiting.Load(); waiting != 0 {
		t.Errorf("%d bytes are said to wait", waiting)
	}
}

func TestBreaker_F08(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var circuits []Circuit
		c := newCondition(RoleAcquire, Events{Circuit: func(circuit Circuit) { circuits = append(circuits, circuit) }})
		driver := errors.New("one of the driver")
		report := func(err error) {
			if err != nil && !isNeutral(err) {
				c.failOpen()
			}
			c.report(time.Now(), err)
		}
		for range 4 {
			report(driver)
		}
		report(nil)
		for range 4 {
			report(errTimeout)
		}
		for _, neutral := range []error{errOverload, errQueue, errClosed, refusal("WRONGTYPE Operation against a key holding the wrong kind of value")} {
			report(neutral)
		}
		if !c.allow() || len(circuits) != 0 {
			t.Fatalf("open after four failures in a row: %v", circuits)
		}
		report(errTimeout)
		if c.allow() || c.health().Breaker != "open" {
			t.Fatal("closed after five failures in a row")
		}
		c.report(time.Now().Add(-time.Second), nil)
		time.Sleep(365 * 24 * time.Hour)
		if c.allow() {
			t.Fatal("time alone, or an answer from before, has closed it")
		}
		report(errOverload)
		c.report(time.Now(), refusal("OOM command not allowed")) // a probe: nobody was let through
		report(nil)
		if !c.allow() || c.health() != (Health{Role: RoleAcquire, Breaker: "closed"}) {
			t.Fatalf("not closed by a success: %+v", c.health())
		}
		want := []Circuit{
			{Role: RoleAcquire, Open: true, Reason: Timeout},
			{Role: RoleAcquire, Reason: OOM, OpenFor: 365 * 24 * time.Hour, FailedOpen: 5},
		}
		if len(circuits) != 2 || circuits[0] != want[0] || circuits[1] != want[1] {
			t.Errorf("told of %+v, want %+v", circuits, want)
		}
	})
}

func TestWhatAnswersOKToEverythingOpensTheBreaker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, acceptErr := listener.Accept()
			if acceptErr != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					switch strings.ToLower(lines.Text()) {
					case "hello": // servers before Redis 6 don't know it
						_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
					case "client", "evalsha", "eval":
						_, _ = conn.Write([]byte("+OK\r\n"))
					}
				}
			}()
		}
	}()
	options := RedisOptions{Network: "tcp", Addresses: []string{listener.Addr().String()}, Prefix: "streamcap"}
	options.AcquireTimeout, options.HeartbeatTimeout, options.ReleaseTimeout, options.AdminTimeout = time.Second, time.Second, time.Second, time.Second
	store := NewRedis(options, Lifetimes{Slot: time.Minute, Initial: time.Minute}, Events{})
	t.Cleanup(func() { store.Close() })
	for range 2 * breakerFailures {
		_, err = store.Acquire(t.Context(), Request{ID: ID{User: "u", Request: "r"}, Limit: 1, Attempt: "a"})
	}
	if !errors.Is(err, errBreaker) {
		t.Errorf("after %d answers that no script of ours gives: %v", 2*breakerFailures, err)
	}
}

func TestStepsAreShortWhereRedisIsNear(t *testing.T) {
	for trip, want := range map[time.Duration]int{0: stepLeast, time.Millisecond: stepLeast, 20 * time.Millisecond: 200, time.Second: 500} {
		var of trips
		of.took(time.Hour) // one that took long is no reason yet
		if got := of.step(); got != stepLeast {
			t.Errorf("%d runs in a step after one long round trip", got)
		}
		of.took(trip)
		of.took(trip)
		if got := of.step(); got != want {
			t.Errorf("%d runs in a step where a round trip takes %s, want %d", got, trip, want)
		}
	}
}

func TestHeartbeatsOfAShortBudgetDoNotLinger(t *testing.T) {
	for budget, want := range map[time.Duration]time.Duration{time.Millisecond: 0, 99 * time.Millisecond: 0, 200 * time.Millisecond: heartbeatLinger} {
		store := NewRedis(RedisOptions{Network: "unix", Addresses: []string{"/nowhere"}, HeartbeatTimeout: budget}, Lifetimes{}, Events{})
		if got := store.heartbeat.linger; got != want {
			t.Errorf("heartbeats of a budget of %s linger for %s, want %s", budget, got, want)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSelfTestThatEndsLateTellsNothing(t *testing.T) {
	var lines []string
	told := &told{role: RoleAcquire, tell: func(_ string, err error) { lines = append(lines, string(ReasonOf(err))) }}
	start := time.Now()
	told.of(start, errTimeout)
	told.of(start.Add(2*time.Second), nil)
	told.of(start.Add(time.Second), errTimeout) // it hung, and the next one did not
	told.of(start.Add(3*time.Second), nil)
	if want := []string{"timeout", ""}; !slices.Equal(lines, want) {
		t.Errorf("told %q, want %q", lines, want)
	}
}
