package slotstore

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisOptions say which Redis, and how long each role's caller waits for it.
type RedisOptions struct {
	Mode           string // standalone, cluster or sentinel
	Network        string // tcp or unix
	Addresses      []string
	DB             int
	Username       string
	Password       string
	SentinelMaster string
	TLS            *tls.Config // nil: plaintext
	Prefix         string      // of every key

	// Hard bounds on the caller's wait, for each chunk of a batch.
	AcquireTimeout, HeartbeatTimeout, ReleaseTimeout, AdminTimeout time.Duration
}

const (
	// lateReply is how long a call goes on after its caller stopped waiting: cutting the connection at each budget
	// kept the breaker open against a Redis whose first reply took 150 ms.
	lateReply = time.Second
	// betweenNodes bounds the last pause before a call is sent again that found one of a user's keys on the old node of a
	// cluster and the other on the new one. They are there for as long as the next key takes to follow.
	betweenNodes = 16 * time.Millisecond
	// workers is how many connections a role uses; calls that wait for one's turn travel together in its next pipeline.
	workers = 8
	// queueLength is how many calls of a role wait at the most. What is over it is an [Overload] at once.
	queueLength = 4096
	// queueBytes is how much keys and arguments of the calls that wait or are under way may hold.
	queueBytes = 16 << 20
	// probeConnections are kept beside the workers' for probes, which must not wait for calls that hang.
	probeConnections = 4
	// overlapAfter is how long a connection has its turn for itself. While Redis answers within that, a role has one
	// pipeline under way, and what comes meanwhile travels together in the next: fewer and longer ones cost both sides less.
	overlapAfter = 500 * time.Microsecond
	// heartbeatLinger is how long single heartbeats wait for others to travel with: nobody waits for one. Under a budget of
	// less than ten times as much they don't.
	heartbeatLinger = 10 * time.Millisecond
)

// role is what a connection is for. It has a client, connections, a queue, a budget and a breaker of its own, so that the
// trouble of one role is nobody else's.
type role struct {
	*condition
	budget  time.Duration
	client  *client
	linger  time.Duration // how long a call waits for others to travel with
	enough  chan struct{} // ends it: so many wait that they fill a step
	queue   chan *call
	turn    chan struct{} // holds one token while a connection has its turn
	waiting atomic.Int64  // bytes
	trips   trips
	test    func() []*call
	beside  func() []*call // what the test asks in the same breath as its first call
	once    func()         // called after the first test that succeeds; nil: nothing
	stop    chan struct{}
	work    sync.WaitGroup
	closing sync.Once
}

// newRole makes a role, to be started. Its self-test makes the calls that must succeed, in their order.
func newRole(name string, options RedisOptions, budget time.Duration, events Events, test func() []*call) *role {
	r := &role{
		condition: newCondition(name, events), budget: budget, client: newClient(name, options, budget), test: test,
		queue: make(chan *call, queueLength), turn: make(chan struct{}, 1), enough: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	return r
}

func (r *role) start() {
	for range workers {
		r.work.Go(r.serve)
	}
	r.work.Go(r.watch)
}

// do hands the call to a connection and waits for it, at most for the role's budget or until ctx ends. Without an
// error every run has its own reply or error.
func (r *role) do(ctx context.Context, c *call) error {
	if r.stopped() {
		return errClosed
	}
	if !r.allow() {
		r.letThrough(c)
		return errBreaker
	}
	c.began = time.Now()
	if r.waiting.Add(c.bytes) > queueBytes {
		return r.shed(c)
	}
	select {
	case r.queue <- c:
	default:
		return r.shed(c)
	}
	if r.linger > 0 && len(r.queue) >= stepLeast {
		select {
		case r.enough <- struct{}{}:
		default:
		}
	}
	defer func() { r.events.called(r.role, c.script.op, time.Since(c.began)) }()
	budget := time.NewTimer(r.budget)
	defer budget.Stop()
	select {
	case <-c.done:
		return nil
	case <-budget.C:
	case <-ctx.Done():
	case <-r.stop:
	}
	switch {
	case c.state.CompareAndSwap(queued, dropped):
		return errOverload
	case c.state.CompareAndSwap(sent, left):
		r.letThrough(c)
		r.report(c.began, errTimeout)
		r.client.doubt(ctx, errTimeout)
		return errTimeout
	}
	<-c.done
	return nil
}

// letThrough counts the caller, whom the store does not answer.
func (r *role) letThrough(c *call) {
	if !c.again {
		r.failOpen()
	}
}

func (r *role) shed(c *call) error {
	r.waiting.Add(-c.bytes)
	r.events.shed(r.role)
	return errQueue
}

// serve sends what waits, again and again, until the role is closed.
func (r *role) serve() {
	for {
		select {
		case r.turn <- struct{}{}:
		case <-r.stop:
			return
		}
		select {
		case c := <-r.queue:
			r.send(r.collect(c))
		case <-r.stop:
			return
		}
	}
}

// collect takes the calls that wait already, up to one step, and where that is not full, those that come while it lingers.
func (r *role) collect(c *call) []*call {
	var calls []*call
	runs, most := 0, r.trips.step()
	take := func(c *call) {
		if !c.state.CompareAndSwap(queued, sent) {
			r.waiting.Add(-c.bytes)
			return
		}
		calls = append(calls, c)
		runs += len(c.runs)
	}
	drain := func() {
		for runs < most {
			select {
			case next := <-r.queue:
				take(next)
			default:
				return
			}
		}
	}
	take(c)
	drain()
	if r.linger > 0 && runs < most {
		over := time.NewTimer(r.linger)
		defer over.Stop()
		select { // and does not wake for each
		case <-over.C:
		case <-r.enough:
		case <-r.stop:
		}
		drain()
	}
	return calls
}

// send runs the calls' scripts, and has the next connection take its turn when they are done or take long.
func (r *role) send(calls []*call) {
	pass := func() { <-r.turn }
	if len(calls) == 0 {
		pass()
		return
	}
	overlap := time.AfterFunc(overlapAfter, pass)
	defer func() {
		if overlap.Stop() {
			pass()
		}
		for _, c := range calls {
			r.finish(c)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), max(r.budget, lateReply))
	defer cancel()
	r.run(ctx, calls...)
}

// finish hands the call back to its caller, or to late.
func (r *role) finish(c *call) {
	r.waiting.Add(-c.bytes)
	if c.state.Swap(answered) != left {
		err := c.failure()
		if err != nil {
			r.letThrough(c)
		}
		r.report(c.began, err)
	} else if c.late != nil {
		c.late()
	}
	close(c.done)
}

func (r *role) health() Health {
	health := r.condition.health()
	health.Waiting = len(r.queue)
	return health
}

// end lets the role begin nothing more.
func (r *role) end() { r.closing.Do(func() { close(r.stop) }) }

// close ends the role: calls that wait get an error, and the connections are closed once what was sent has ended.
func (r *role) close() error {
	r.end()
	r.work.Wait()
	return r.client.Close()
}

func (r *role) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// quietDriver takes away the driver's own log: every error comes back with the call that met it.
func quietDriver() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
