package main

import (
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// newLogger writes lines with time (UTC, with ms), level and message.
func newLogger(w io.Writer, level, format string) zerolog.Logger {
	if format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: true}
	}
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel
	}
	return zerolog.New(w).Level(parsed).Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		e.Str("time", time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}))
}

// warnings takes the lines of net/http's own logger.
type warnings struct{ log zerolog.Logger }

func (w warnings) Write(line []byte) (int, error) {
	w.log.Warn().Msg(strings.TrimSpace(string(line)))
	return len(line), nil
}

// throttle has one line written for each key and interval, which tells how many events it stands for. Its zero value has
// all written. It remembers at most throttleKeys keys; beyond them, keys that it does not know share one.
type throttle struct {
	every time.Duration
	// most is up to where the interval doubles with each line, until the key was quiet for one; 0: it stays.
	most time.Duration

	mu    sync.Mutex
	keys  map[string]*throttled
	swept time.Time
}

type throttled struct {
	last, next time.Time // line
	every      time.Duration
	count      int             // since the last line
	line       func(count int) // the newest of those that are not said yet
	due        *time.Timer     // nil: none waits for next
}

const throttleKeys = 10_000

// say has line written with how many events it stands for: now, or where key had one within the interval, at its end and for
// all that came meanwhile.
func (t *throttle) say(key string, line func(count int)) {
	t.mu.Lock()
	k := t.of(key)
	k.count++
	k.line = line
	wait := time.Until(k.next)
	if wait > 0 && k.due == nil {
		k.due = time.AfterFunc(wait, func() { t.sayDue(k) })
	}
	t.mu.Unlock()
	if wait <= 0 {
		t.sayDue(k)
	}
}

// sayDue has the line written that is due, if another did not say it along with its own.
func (t *throttle) sayDue(k *throttled) {
	t.mu.Lock()
	line, count := k.line, 0
	if line != nil && time.Until(k.next) <= 0 {
		count = t.turn(k)
	}
	t.mu.Unlock()
	if count > 0 {
		line(count)
	}
}

// turn begins the interval after a line, which stands for count events.
func (t *throttle) turn(k *throttled) (count int) {
	now := time.Now()
	if now.After(k.next.Add(k.every)) {
		k.every = t.every
	}
	count = k.count
	k.last, k.next, k.every = now, now.Add(k.every), max(t.every, min(2*k.every, t.most))
	k.rest()
	return count
}

// rest drops what waits.
func (k *throttled) rest() {
	if k.due != nil {
		k.due.Stop()
	}
	k.count, k.line, k.due = 0, nil, nil
}

// of returns what is known of key.
func (t *throttle) of(key string) *throttled {
	now := time.Now()
	if t.keys == nil {
		t.keys = make(map[string]*throttled)
	}
	k := t.keys[key]
	if k == nil && len(t.keys) >= throttleKeys {
		if now.Sub(t.swept) >= t.every { // not for each stranger: it looks at all of them
			t.swept = now
			maps.DeleteFunc(t.keys, func(_ string, old *throttled) bool { return now.After(old.next) })
		}
		if len(t.keys) >= throttleKeys {
			key = ""
			k = t.keys[key]
		}
	}
	if k == nil {
		k = &throttled{}
		t.keys[key] = k
	}
	return k
}

// forget begins anew with a key, but for the shortest interval since its last line: trouble may come and go every moment.
func (t *throttle) forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.keys[key]; k != nil {
		k.next, k.every = k.last.Add(t.every), t.every
		k.rest()
	}
}
