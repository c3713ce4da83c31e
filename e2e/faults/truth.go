package main

import (
	"sync"
	"time"
)

// user is one user as the load generator knows her: how many of her streams run is a fact here, not a counter somewhere.
type user struct {
	name  string
	limit int

	mu      sync.Mutex
	running int
	ended   []time.Time // of those that may still hold a slot
}

// grace is how long the slot of a stream that has ended may stand: the release is under way.
const grace = time.Second

// span is a stretch of time.
type span struct{ from, to time.Time }

// holds says whether t lies within it, or close by.
func (s span) holds(t time.Time) bool {
	const near = 200 * time.Millisecond
	return t.After(s.from.Add(-near)) && (s.to.IsZero() || t.Before(s.to.Add(near)))
}

// begin counts a stream that starts now, unless it could be the user's limit plus first: then nothing of her is known.
// A stream that ended while the sidecar was away could not be given back; its slot stands for the TTL, as documented.
func (u *user) begin(away []span, ttl time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	kept := u.ended[:0]
	for _, at := range u.ended {
		stands := grace
		for _, span := range away {
			if span.holds(at) {
				stands = ttl + grace
			}
		}
		if now.Sub(at) < stands {
			kept = append(kept, at)
		}
	}
	u.ended = kept
	if u.running+len(u.ended) >= u.limit {
		return false
	}
	u.running++
	return true
}

// end is a stream's end; what was refused never held a slot.
func (u *user) end(refused bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running--
	if !refused {
		u.ended = append(u.ended, time.Now())
	}
}
