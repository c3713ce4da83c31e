package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// holder is a user over her limit: she keeps her only slot with one long stream.
type holder struct {
	*user

	hold atomic.Pointer[hold]
	// guests are her starts over the limit, and for a moment what they leave behind: one that comes as her long stream is cut
	// takes the slot, and she is rightly refused until it ends.
	guests atomic.Int64
}

// hold is the stream that keeps it. since is when it was granted.
type hold struct{ since time.Time }

func (h *holder) held() *hold { return h.hold.Load() }

// hold keeps the user's slot taken until ctx ends: it starts again what the store has forgotten or never counted.
func (l *load) hold(ctx context.Context, h *holder) {
	for ctx.Err() == nil {
		if !l.holdOnce(ctx, h) {
			pause(ctx, 150*time.Millisecond)
		}
	}
}

// holdOnce says whether the slot was held for a while.
func (l *load) holdOnce(ctx context.Context, h *holder) bool {
	ok, waiting := h.begin(l.spans(), l.ttl)
	if !ok {
		return false
	}
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	s, body := l.start(streaming, h.user, holding, "?for=1h")
	defer func() { h.end(s.status == http.StatusTooManyRequests) }()
	if ctx.Err() == nil {
		s.wrong, s.waiting = s.status == http.StatusTooManyRequests && h.guests.Load() == 0, waiting
		l.record(s)
	}
	if body == nil {
		return false
	}
	defer body.Close() // we leave it in the middle
	if s.slot != "held" {
		return false
	}
	h.hold.Store(&hold{since: s.sent})
	defer h.hold.Store(nil)
	l.work.Go(func() { // leaves what the store has forgotten
		for streaming.Err() == nil && l.remembered(s.sent) {
			pause(streaming, 20*time.Millisecond)
		}
		cancel()
	})
	_, err := io.Copy(io.Discard, body)
	if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		now := time.Now()
		l.record(shot{kind: holding, sent: now, ended: now, user: h.name, err: fmt.Errorf("a stream that should go on ended: %w", err)})
	}
	return true
}

// holders is how many users hold their slot now.
func (l *load) holders() int {
	n := 0
	for _, h := range l.over {
		if held := h.held(); held != nil && l.remembered(held.since) {
			n++
		}
	}
	return n
}
