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

// throttle lets one line through for each key and interval, and counts what it holds back. Its zero value lets
// everything through. It remembers at most throttleKeys keys; beyond them, keys that it does not know share one.
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
	count      int // since the last line
}

const throttleKeys = 10_000

// allow says whether a line may be written for key now, and how many events it stands for, this one included.
func (t *throttle) allow(key string) (count int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
	k.count++
	if now.Before(k.next) {
		return 0, false
	}
	if now.After(k.next.Add(k.every)) {
		k.every = t.every
	}
	count, k.count, k.last, k.next = k.count, 0, now, now.Add(k.every)
	k.every = max(t.every, min(2*k.every, t.most))
	return count, true
}

// forget begins anew with a key, but for the shortest interval since its last line: trouble may come and go every moment.
func (t *throttle) forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.keys[key]; k != nil {
		k.next, k.every, k.count = k.last.Add(t.every), t.every, 0
	}
}
