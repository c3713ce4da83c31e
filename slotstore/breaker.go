package slotstore

import (
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

const (
	// breakerFailures in a row open a role's breaker.
	breakerFailures = 5
	// probeEvery is how often a role that is unwell tries itself. Two of them fit into the second within which it has to
	// notice that Redis answers again.
	probeEvery = 500 * time.Millisecond
)

// Circuit is what [Events].Circuit tells of a breaker that opened or closed.
type Circuit struct {
	Role   string
	Open   bool
	Reason Reason // of the last failure before
	// OpenFor and FailedOpen are told when it closes: for how long it was open, and how many callers the store did not
	// answer from the first failure on. A batch is one, and who tries again none (see [Again]).
	OpenFor    time.Duration
	FailedOpen int
}

// condition is how well a role's store answers. A role is unwell from a failure to the next success; after
// breakerFailures in a row its breaker is open, and only a probe's success closes it.
type condition struct {
	role    string
	events  Events
	breaker circuitbreaker.CircuitBreaker[any]

	mu         sync.Mutex
	lastError  error
	since      time.Time // of the first failure since the last success
	openedAt   time.Time
	failedOpen int
}

func newCondition(role string, events Events) *condition {
	return &condition{
		role: role, events: events,
		// Calls never try a breaker that is open, so that none of them waits for a store that is away.
		breaker: circuitbreaker.NewBuilder[any]().WithFailureThreshold(breakerFailures).WithDelay(math.MaxInt64).Build(),
	}
}

// allow says whether a call may be sent.
func (c *condition) allow() bool { return !c.breaker.IsOpen() }

// failOpen counts a caller whom the store did not answer.
func (c *condition) failOpen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failedOpen++
}

// report takes the result of a call or a probe that began then.
func (c *condition) report(began time.Time, err error) {
	circuit := c.record(began, err)
	if circuit != nil && c.events.Circuit != nil {
		c.events.Circuit(*circuit)
	}
}

// record says if the breaker changed.
func (c *condition) record(began time.Time, err error) *Circuit {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasOpen := c.breaker.IsOpen()
	switch {
	case isNeutral(err):
		return nil
	case err != nil:
		if c.lastError == nil {
			c.since = time.Now()
		}
		c.lastError = err
		c.breaker.RecordFailure()
		if !wasOpen && c.breaker.IsOpen() {
			c.openedAt = time.Now()
			return &Circuit{Role: c.role, Open: true, Reason: classify(err)}
		}
		return nil
	case wasOpen && began.Before(c.openedAt):
		return nil // an answer from before the trouble says nothing of its end
	}
	failedOpen, lastError := c.failedOpen, c.lastError
	c.failedOpen, c.lastError = 0, nil
	if !wasOpen {
		c.breaker.RecordSuccess()
		return nil
	}
	c.breaker.Close()
	return &Circuit{Role: c.role, Reason: classify(lastError), OpenFor: time.Since(c.openedAt), FailedOpen: failedOpen}
}

// isNeutral knows the failures that say nothing of the store: what was never sent, and one user's key of a wrong type.
func isNeutral(err error) bool {
	return errors.Is(err, errOverload) || errors.Is(err, errQueue) || errors.Is(err, errClosed) ||
		err != nil && classify(err) == WrongType
}

func (c *condition) unwell() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastError != nil
}

func (c *condition) health() Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	health := Health{Role: c.role, Breaker: c.breaker.State().String()}
	if c.lastError != nil {
		text, _, _ := strings.Cut(c.lastError.Error(), ", with args beginning") // they name a user
		health.LastError = string(classify(c.lastError)) + ": " + text
		health.Since = c.since
	}
	return health
}
