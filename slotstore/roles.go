package slotstore

import (
	"context"
	"crypto/tls"
	"fmt"
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
	// workers is how many connections a role uses; calls that wait for one travel together in its next pipeline.
	workers = 8
	// queueLength is how many calls of a role wait at the most. What is over it is an [Overload] at once.
	queueLength = 4096
	// queueBytes is how much keys and arguments of the calls that wait or are under way may hold.
	queueBytes = 16 << 20
	// probeConnections are kept beside the workers' for probes, which must not wait for calls that hang.
	probeConnections = 4
	// pipelineRuns is how many script runs one pipeline holds before it takes no further call.
	pipelineRuns = 500
)

// role is what a connection is for. It has a client, connections, a queue, a budget and a breaker of its own, so that the
// trouble of one role is nobody else's.
type role struct {
	*condition
	budget  time.Duration
	client  *client
	queue   chan *call
	waiting atomic.Int64 // bytes
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
		queue: make(chan *call, queueLength), stop: make(chan struct{}),
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
		r.reportCall(c.began, errTimeout)
		r.client.doubt(ctx, errTimeout)
		return errTimeout
	}
	<-c.done
	return nil
}

func (r *role) shed(c *call) error {
	r.waiting.Add(-c.bytes)
	r.events.shed(r.role)
	return errQueue
}

// serve sends what waits, as one pipeline, until the role is closed.
func (r *role) serve() {
	for {
		select {
		case c := <-r.queue:
			r.send(r.collect(c))
		case <-r.stop:
			return
		}
	}
}

// collect takes the calls that wait already, without waiting for more.
func (r *role) collect(c *call) []*call {
	var calls []*call
	runs := 0
	for {
		if c.state.CompareAndSwap(queued, sent) {
			calls = append(calls, c)
			runs += len(c.runs)
		} else {
			r.waiting.Add(-c.bytes)
		}
		if runs >= pipelineRuns {
			return calls
		}
		select {
		case c = <-r.queue:
		default:
			return calls
		}
	}
}

// send runs the calls' scripts in one pipeline, and once more with their text where the server does not know them: a
// restart, a failover and SCRIPT FLUSH all forget them.
func (r *role) send(calls []*call) {
	if len(calls) == 0 {
		return
	}
	defer func() {
		for _, c := range calls {
			r.finish(c)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), max(r.budget, lateReply))
	defer cancel()
	r.run(ctx, calls...)
}

// run runs the calls' scripts, in any order.
func (r *role) run(ctx context.Context, calls ...*call) {
	r.exec(ctx, calls, func(to redis.Cmdable, c *call, run *run) *redis.Cmd {
		return to.EvalSha(ctx, c.script.sha, run.keys, run.args...)
	})
	byText := func(where string) bool {
		return r.exec(ctx, calls, func(to redis.Cmdable, c *call, run *run) *redis.Cmd {
			if !redis.HasErrorPrefix(run.err, where) {
				return nil
			}
			return to.Eval(ctx, c.script.text, run.keys, run.args...)
		})
	}
	byText("NOSCRIPT")
	for wait := time.Millisecond; byText("TRYAGAIN") && wait <= betweenNodes; wait *= 2 {
		time.Sleep(wait)
	}
}

// exec sends together what queue puts there: a command for a run, or nil to leave the run as it is. It says whether there
// was any.
func (r *role) exec(ctx context.Context, calls []*call, queue func(redis.Cmdable, *call, *run) *redis.Cmd) bool {
	type pending struct {
		call *call
		run  *run
		sent *batch
		cmd  *redis.Cmd
	}
	var all []pending
	batches := r.client.batches(ctx)
	for _, c := range calls {
		for i := range c.runs {
			run := &c.runs[i]
			batch := batches.of(run.keys)
			if cmd := queue(batch.pipeline, c, run); cmd != nil {
				all = append(all, pending{c, run, batch, cmd})
			}
		}
	}
	if len(all) == 0 {
		return false
	}
	defer func() {
		if p := recover(); p != nil {
			for _, pending := range all {
				pending.run.err = fmt.Errorf("panic in the driver: %v", p)
			}
		}
	}()
	batches.send()
	for _, p := range all {
		if isRedirection(p.cmd.Err()) && batches.cluster {
			p.cmd = queue(r.client, p.call, p.run) // by itself, the driver follows
		}
		p.run.reply, p.run.err = p.cmd.Result()
		if p.run.reply == nil && p.run.err == nil {
			p.run.err = p.sent.err // the handshake failed: the driver tells the pipeline, not its commands
		}
		if _, ok := p.run.reply.([]any); !ok && p.run.err == nil {
			p.run.err = errReply // which counts for the breaker, and for a probe: this is no Redis with our scripts
		}
		r.client.doubt(ctx, p.run.err)
	}
	return true
}

// finish hands the call back to its caller, or to late.
func (r *role) finish(c *call) {
	r.waiting.Add(-c.bytes)
	if c.state.Swap(answered) != left {
		r.reportCall(c.began, c.failure())
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
