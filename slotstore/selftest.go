package slotstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// watch tests the role at the start, and for as long as it is unwell, without waiting for a test that hangs.
func (r *role) watch() {
	var tests sync.WaitGroup
	defer tests.Wait()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	told := &told{tell: r.events.SelfTest, role: r.role}
	var once sync.Once
	test := func(budget time.Duration) {
		began := time.Now()
		err := r.probe(budget)
		if errors.Is(err, errTimeout) { // it was answered, if late: the next need not make a connection
			began, err = time.Now(), r.probe(budget)
		}
		told.of(began, err)
		if err == nil && r.once != nil {
			once.Do(r.once)
		}
	}
	tests.Go(func() { test(lateReply) }) // the first has a connection to make, and no caller
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			if r.unwell() {
				tests.Go(func() { test(r.budget) })
			}
		}
	}
}

// probe runs the role's real scripts on the probe key and reports how it went. Each of its calls may take no longer than the
// budget, as any other, and goes on to a late reply: what it returns is the cause in the end. It ends at a call that nobody
// answered; behind one that was answered with an error the last still gives back what the first took.
func (r *role) probe(budget time.Duration) error {
	began, late := time.Now(), false
	tell := sync.OnceFunc(func() {
		r.report(began, errTimeout)
		r.client.doubt(context.Background(), errTimeout)
	})
	var first error
	calls := r.test()
	for i := 0; i < len(calls) && (first == nil || isReply(first)); i++ {
		together := calls[i : i+1]
		if i == 0 {
			together = append(r.beside(), together...)
		}
		ctx, cancel := context.WithTimeout(context.Background(), max(r.budget, lateReply))
		overdue := time.AfterFunc(budget, tell)
		r.run(ctx, together...)
		late = !overdue.Stop() || late
		cancel()
		for _, c := range together {
			if first == nil {
				first = c.failure()
			}
		}
	}
	switch {
	case r.stopped():
		return errClosed
	case !late:
		r.report(began, first)
	case first == nil:
		return errTimeout
	}
	return first
}

// told tells of self-tests that end otherwise than the one before.
type told struct {
	tell func(role string, err error)
	role string

	mu     sync.Mutex
	began  time.Time // the test before, which may have ended behind one that began later
	reason Reason
}

// of takes how a test ended that began then.
func (t *told) of(began time.Time, err error) {
	if t.tell == nil || errors.Is(err, errClosed) {
		return
	}
	var reason Reason
	if err != nil {
		err = failure("self-test", err)
		reason = ReasonOf(err)
	}
	t.mu.Lock()
	old, same := began.Before(t.began), !t.began.IsZero() && t.reason == reason
	if !old {
		t.began, t.reason = began, reason
	}
	t.mu.Unlock()
	if !old && !same {
		t.tell(t.role, err)
	}
}

// probeLifetime is how long a probe's slot stays where its release is lost.
const probeLifetime = 2000 // ms

// probeAcquire takes a slot, renews it and has another one denied: each needs commands that the others don't.
func probeAcquire(keys []string, request string) *call {
	c := newCall(acquireScript.sharing(probeLifetime, probeLifetime), 3)
	c.with(keys, request, -1, "probe", "\n\n")
	c.with(keys, request, -1, "again", "\n\n")
	return c.with(keys, request+".", 0, "probe", "\n\n")
}

// probeHeartbeat has a maximum age, so that it looks at the details.
func probeHeartbeat(keys []string, request string) *call {
	return newCall(heartbeatScript.sharing(probeLifetime, time.Hour.Milliseconds()), 1).with(keys, 1, request)
}

func probeRelease(keys []string, request string) *call {
	return newCall(releaseScript.sharing(probeLifetime), 1).with(keys, "", 1, request)
}

// probeFirst is what an acquire needs where the user holds nothing yet: the probe key may hold another test's slot.
func probeFirst(keys []string) *call {
	return newCall(firstScript, 1).with(keys)
}

const firstLua = `
	redis.call('HLEN', KEYS[2])
	return {}
`

// probeLooks are what people's and charts' looks at all users need, but for the writing of a sample: a full Redis still
// shows the slots.
func probeLooks(keys []string) *call {
	return newCall(looksScript, 1).with(keys)
}

const looksLua = `
	redis.call('ZCOUNT', KEYS[1], '-inf', '+inf')
	redis.call('HGET', KEYS[2], '')
	redis.call('GET', KEYS[1] .. ':sample')
	redis.call('SCAN', 0, 'COUNT', 1)
	return {}
`

// beside is what a role's test asks in the same breath as its first call. A script that is sent by its text may be let, or
// not, where one that Redis knows goes through.
func (s *Redis) beside() []*call {
	return append(s.otherSlots(), newCall(nothingScript, 1).with(s.keysOf(probeUser)))
}

// otherSlots looks at keys in the other quarters of a cluster's slots. A cluster's node that is asked in standalone mode
// may be the one that keeps the probe key, and is not the one that keeps most users'. Nothing is ever kept under these
// keys, and no user can own them either.
func (s *Redis) otherSlots() []*call {
	if !s.standalone {
		return nil
	}
	c := newCall(listScript, 3)
	for _, user := range []string{"%probe2", "%probe3", "%probe4"} {
		c.with(s.keysOf(user))
	}
	return []*call{c}
}
