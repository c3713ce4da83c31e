package slotstore

import (
	_ "embed"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//nolint:gochecknoglobals // the scripts are part of the program
var (
	//go:embed acquire.lua
	acquireLua string
	//go:embed heartbeat.lua
	heartbeatLua string
	//go:embed release.lua
	releaseLua string
	//go:embed list.lua
	listLua string
	//go:embed sample.lua
	sampleLua string

	acquireScript   = newScript("acquire", acquireLua)
	heartbeatScript = newScript("heartbeat", heartbeatLua)
	releaseScript   = newScript("release", releaseLua)
	listScript      = newScript("list", listLua)
	sampleScript    = newScript("scan", sampleLua).sharing()
	firstScript     = spelt("acquire", firstLua)
	looksScript     = spelt("scan", looksLua)
	nothingScript   = spelt("list", "return {}")
)

// script is a Lua script, what it does in a word, and the digest that a server which knows it knows it by. One that is
// shared takes the keys and arguments of several users in one execution, behind the arguments that are everybody's, and
// replies to each; any other takes one user's.
type script struct {
	op, text, sha string
	shared        bool
	head          []any
}

func newScript(op, text string) *script {
	return &script{op: op, text: text, sha: redis.NewScript(text).Hash()}
}

// spelt is a script that is always sent by its text.
func spelt(op, text string) *script { return &script{op: op, text: text} }

// sharing is the script with the arguments that are everybody's.
func (s *script) sharing(head ...any) *script {
	return &script{op: s.op, text: s.text, sha: s.sha, shared: true, head: head}
}

// call is a script with one or more users' keys and arguments: what its caller waits for as one.
type call struct {
	script *script
	runs   []run
	bytes  int64 // of its keys and arguments
	began  time.Time
	again  bool   // its caller has been counted as one whom the store did not answer
	late   func() // called instead of the caller if the call ends after she stopped waiting; may be nil
	state  atomic.Int32
	done   chan struct{}
}

// run is the script's work on one user.
type run struct {
	script *script
	keys   []string
	args   []any
	reply  any
	err    error
}

// answered says whether the server answered, be it with an error.
func (r *run) answered() bool { return r.err == nil || isReply(r.err) }

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
	c.runs = append(c.runs, run{script: c.script, keys: keys, args: args})
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
