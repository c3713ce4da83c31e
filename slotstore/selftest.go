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
		err := r.probe(budget)
		told.of(err)
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

// probe runs the role's real scripts on the probe key and reports how it went. Like a call, it may take no longer than
// the budget, and goes on to a late reply: what it returns is the cause in the end.
func (r *role) probe(budget time.Duration) error {
	calls, done, began := r.test(), make(chan error, 1), time.Now()
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), max(r.budget, lateReply))
		defer cancel()
		var first error
		together := append(r.beside(), calls[0])
		for i := range calls { // also behind one that failed: the last gives back what the first took
			if i > 0 {
				together = calls[i : i+1]
			}
			r.run(ctx, together...)
			for _, c := range together {
				if first == nil {
					first = c.failure()
				}
			}
		}
		done <- first
	})
	timeout := time.NewTimer(budget)
	defer timeout.Stop()
	select {
	case err := <-done:
		r.report(began, err)
		return err
	case <-timeout.C:
		r.report(began, errTimeout)
		r.client.doubt(context.Background(), errTimeout)
	case <-r.stop:
		return errClosed
	}
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-r.stop:
		return errClosed
	}
	return errTimeout
}

// told tells of self-tests that end otherwise than the one before.
type told struct {
	tell func(role string, err error)
	role string

	mu     sync.Mutex
	before bool
	reason Reason
}

func (t *told) of(err error) {
	if t.tell == nil || errors.Is(err, errClosed) {
		return
	}
	var reason Reason
	if err != nil {
		err = failure("self-test", err)
		reason = ReasonOf(err)
	}
	t.mu.Lock()
	same := t.before && t.reason == reason
	t.before, t.reason = true, reason
	t.mu.Unlock()
	if !same {
		t.tell(t.role, err)
	}
}
