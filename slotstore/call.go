package slotstore

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// script is a Lua script, what it does in a word, and the digest that a server which knows it knows it by.
type script struct{ op, text, sha string }

func newScript(op, text string) *script {
	return &script{op: op, text: text, sha: redis.NewScript(text).Hash()}
}

// call is a script with one or more sets of keys and arguments: what its caller waits for as one.
type call struct {
	script *script
	runs   []run
	bytes  int64 // of its keys and arguments
	began  time.Time
	late   func() // called instead of the caller if the call ends after she stopped waiting; may be nil
	state  atomic.Int32
	done   chan struct{}
}

// run is one execution of a script.
type run struct {
	keys  []string
	args  []any
	reply any
	err   error
}

// The states of a call. A caller whose budget ends moves it from queued to dropped (it is never sent) or from sent to
// left (late is told of its end).
const (
	queued int32 = iota
	sent
	dropped
	left
	answered
)

func newCall(script *script, runs int) *call {
	return &call{script: script, runs: make([]run, 0, runs), done: make(chan struct{})}
}

// with adds a run.
func (c *call) with(keys []string, args ...any) *call {
	c.runs = append(c.runs, run{keys: keys, args: args})
	for _, key := range keys {
		c.bytes += int64(len(key))
	}
	for _, arg := range args {
		if text, ok := arg.(string); ok {
			c.bytes += int64(len(text))
		}
	}
	return c
}

// failure is the first error that one of its runs met, and that says something of the store.
func (c *call) failure() error {
	for i := range c.runs {
		if err := c.runs[i].err; !isNeutral(err) && err != nil {
			return err
		}
	}
	return nil
}
