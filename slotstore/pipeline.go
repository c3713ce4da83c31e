package slotstore

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is what travels to Redis together. Redis does an execution to its end before it turns to another connection,
// and some ten thousand bytes of a pipeline: 500 heartbeats at once were 5 ms for every acquire behind them. So runs go in
// steps, which are short where Redis is near, and longer where the way there takes so long that they don't matter.

const (
	// stepLeast and stepMost bound how many runs one step holds; stepLeast is also the most of one execution.
	stepLeast = 16
	stepMost  = 500
	// runsPerMillisecond is what takes Redis a tenth of a millisecond, at some 10 µs a run.
	runsPerMillisecond = 10
)

// trips are the round trips of the last two steps.
type trips struct{ last, shorter atomic.Int64 } // ms

// step is how many runs the next step may hold: as many as take Redis a tenth of the shorter one.
func (t *trips) step() int {
	return int(max(stepLeast, min(t.shorter.Load()*runsPerMillisecond, stepMost)))
}

func (t *trips) took(trip time.Duration) {
	t.shorter.Store(min(trip.Milliseconds(), t.last.Swap(trip.Milliseconds())))
}

// run runs the calls' scripts, in steps. What comes behind a step that the network ended is not sent.
func (r *role) run(ctx context.Context, calls ...*call) {
	var runs []*run
	for _, c := range calls {
		for i := range c.runs {
			runs = append(runs, &c.runs[i])
		}
	}
	for len(runs) > 0 {
		step := runs[:min(len(runs), r.trips.step())]
		runs = runs[len(step):]
		r.step(ctx, step)
		if !slices.ContainsFunc(step, (*run).answered) {
			for _, run := range runs {
				run.err = step[0].err
			}
			return
		}
	}
}

// step runs scripts in one pipeline, and once more with their text where the server does not know them: a restart, a
// failover and SCRIPT FLUSH all forget them.
func (r *role) step(ctx context.Context, runs []*run) {
	began := time.Now()
	r.exec(ctx, runs, byDigest)
	r.trips.took(time.Since(began))
	again := func(code string) bool {
		var some []*run
		for _, run := range runs {
			if run.err != nil && redis.HasErrorPrefix(run.err, code) {
				some = append(some, run)
			}
		}
		if len(some) == 0 {
			return false
		}
		r.client.apart.CompareAndSwap(false, code == "CROSSSLOT")
		r.exec(ctx, some, byText)
		return true
	}
	again("NOSCRIPT")
	again("CROSSSLOT")
	for wait := time.Millisecond; again("TRYAGAIN") && wait <= betweenNodes; wait *= 2 {
		time.Sleep(wait)
	}
}

// execution is one execution of a script: the runs that share it, and how it went.
type execution struct {
	script *script
	runs   []*run
	sent   *batch
	keys   []string
	args   []any
	cmd    *redis.Cmd
}

func byDigest(ctx context.Context, to redis.Cmdable, e *execution) *redis.Cmd {
	if e.script.sha == "" {
		return byText(ctx, to, e)
	}
	return to.EvalSha(ctx, e.script.sha, e.keys, e.args...)
}

func byText(ctx context.Context, to redis.Cmdable, e *execution) *redis.Cmd {
	return to.Eval(ctx, e.script.text, e.keys, e.args...)
}

// exec sends the runs together, by digest or by text.
func (r *role) exec(ctx context.Context, runs []*run, eval func(context.Context, redis.Cmdable, *execution) *redis.Cmd) {
	defer func() {
		if p := recover(); p != nil {
			for _, run := range runs {
				run.err = fmt.Errorf("panic in the driver: %v", p)
			}
		}
	}()
	batches := r.client.batches(ctx)
	executions := r.executions(batches, runs)
	for _, e := range executions {
		e.cmd = eval(ctx, e.sent.pipeline, e)
	}
	batches.send()
	for _, e := range executions {
		if isRedirection(e.cmd.Err()) && batches.cluster {
			e.cmd = eval(ctx, r.client, e) // by itself, the driver follows
		}
		e.share()
		r.client.doubt(ctx, e.runs[0].err)
	}
}

// executions has runs of one script share, except where their keys may be on several nodes.
func (r *role) executions(batches *batches, runs []*run) []*execution {
	executions := make([]*execution, 0, 1+len(runs)/stepLeast)
	var last *execution
	for _, run := range runs {
		if last == nil || run.script != last.script || !last.script.shared || len(last.runs) == stepLeast || r.client.apart.Load() {
			last = &execution{script: run.script, sent: batches.of(run.keys)}
			last.args = append(last.args, run.script.head...)
			executions = append(executions, last)
		}
		last.runs = append(last.runs, run)
		last.keys = append(last.keys, run.keys...)
		last.args = append(last.args, run.args...)
	}
	return executions
}

// share gives each run its part of the reply, or the error.
func (e *execution) share() {
	reply, err := e.cmd.Result()
	if reply == nil && err == nil {
		err = e.sent.err // the handshake failed: the driver tells the pipeline, not its commands
	}
	replies, ok := reply.([]any)
	if err == nil && (!ok || e.script.shared && len(replies) != len(e.runs)) {
		err = errReply // which counts for the breaker, and for a probe: this is no Redis with our scripts
	}
	for i, run := range e.runs {
		run.reply, run.err = reply, err
		if err == nil && e.script.shared {
			run.reply = replies[i]
		}
		if _, ok := run.reply.([]any); !ok && run.err == nil {
			run.err = errReply
		}
		if refused, ok := run.reply.(error); ok {
			run.reply, run.err = nil, refused
		}
	}
}
