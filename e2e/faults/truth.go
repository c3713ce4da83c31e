package main

import (
	"slices"
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

// span is a stretch of time in which the sidecar took no releases.
type span struct {
	from, to time.Time // to is zero while it lasts
	lost     bool      // it was gone: what was sent to it never arrives, and slots stand for the TTL, as documented
}

// holds says whether t lies within it, or close by.
func (s span) holds(t time.Time) bool {
	const near = 200 * time.Millisecond
	return t.After(s.from.Add(-near)) && (s.to.IsZero() || t.Before(s.to.Add(near)))
}

// begin counts a stream that starts now, unless it could be the user's limit plus first: then nothing of her is known.
// waiting says that it is so only if releases that wait in the sockets of a stopped sidecar have been taken: it has to get
// to them first.
func (u *user) begin(away []span, ttl time.Duration) (ok, waiting bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now, behind := time.Now(), 0
	u.ended = slices.DeleteFunc(u.ended, func(at time.Time) bool {
		until, later := at.Add(grace), at
		for _, span := range away {
			switch {
			case !span.holds(at):
			case span.lost:
				until = latest(until, at.Add(ttl+grace))
			case span.to.IsZero():
				later = now.Add(grace)
			default:
				later = span.to.Add(grace)
			}
		}
		if now.After(until) && now.Before(later) {
			behind++
		}
		return now.After(until) && now.After(later)
	})
	standing := u.running + len(u.ended)
	if standing-behind >= u.limit {
		return false, false
	}
	u.running++
	return true, standing >= u.limit
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
