package slotstore

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"
)

// Memory keeps slots in this process: the embedded store, for one sidecar without Redis. It forgets everything at the
// end of the process, and users who hold nothing soon after their last slot expired, without a goroutine of its own.
type Memory struct {
	lifetimes Lifetimes
	events    Events
	epoch     time.Time
	maxUsers  int64 // 0: no bound
	seed      maphash.Seed
	userCount atomic.Int64
	shards    [64]shard
}

type shard struct {
	mu       sync.Mutex
	users    map[string][]memorySlot
	sweepDue time.Duration // since the epoch
}

// memorySlot is 80 bytes and two strings of its own: there may be a million. It counts time since the store's epoch, in 8
// bytes and monotonic. A user agent is long and that of many, so it is kept once.
type memorySlot struct {
	request   string
	attempt   uint64 // a hash; 0: what it took is kept
	from      string // address, newline, URI
	userAgent unique.Handle[string]
	started   time.Duration
	expires   time.Duration
	limit     int
}

func (s memorySlot) provenance() Provenance {
	ip, uri, _ := strings.Cut(s.from, "\n")
	return Provenance{IP: ip, URI: uri, UserAgent: s.userAgent.Value()}
}

// NewMemory returns an empty store. An acquire that would make it hold slots of more than maxUsers users fails with
// [Overload]; 0 is no bound.
func NewMemory(lifetimes Lifetimes, events Events, maxUsers int) *Memory {
	m := &Memory{lifetimes: lifetimes, events: events, maxUsers: int64(maxUsers), epoch: time.Now(), seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].users = make(map[string][]memorySlot)
		m.shards[i].sweepDue = lifetimes.Slot
	}
	return m
}

// user calls do with her live slots and the present, and keeps what do returns.
func (m *Memory) user(user string, do func(live []memorySlot, now time.Duration) []memorySlot) {
	shard := &m.shards[maphash.String(m.seed, user)%uint64(len(m.shards))]
	shard.mu.Lock()
	now := time.Since(m.epoch)
	expired := 0
	if now >= shard.sweepDue { // once in a slot's lifetime, so that one-off users go; 1/64 of them at a time
		for name, slots := range shard.users {
			live := prune(slots, now)
			expired += len(slots) - len(live)
			m.keep(shard, name, slots, live)
		}
		shard.sweepDue = now + m.lifetimes.Slot
	}
	slots := shard.users[user]
	live := prune(slots, now)
	expired += len(slots) - len(live)
	m.keep(shard, user, slots, do(live, now))
	shard.mu.Unlock()
	m.events.expired(expired)
}

// keep stores what is left of a user's slots.
func (m *Memory) keep(shard *shard, user string, before, after []memorySlot) {
	switch {
	case len(after) > 0:
		shard.users[user] = after
		if before == nil {
			m.userCount.Add(1)
		}
	case before != nil:
		delete(shard.users, user)
		m.userCount.Add(-1)
	}
}

// prune drops dead slots in place; what it returns shares its memory with slots.
func prune(slots []memorySlot, now time.Duration) []memorySlot {
	return slices.DeleteFunc(slots, func(s memorySlot) bool { return s.expires <= now })
}

// attempt is never 0.
func (m *Memory) attempt(token string) uint64 { return maphash.String(m.seed, token) | 1 }

func find(slots []memorySlot, request string) int {
	return slices.IndexFunc(slots, func(s memorySlot) bool { return s.request == request })
}

// Acquire implements [Store]. It fails over the bound on users alone.
func (m *Memory) Acquire(_ context.Context, req Request) (decision Decision, err error) {
	m.user(req.User, func(live []memorySlot, now time.Duration) []memorySlot {
		slot := memorySlot{
			request: req.Request, attempt: m.attempt(req.Attempt), from: req.IP + "\n" + req.URI, userAgent: unique.Make(req.UserAgent),
			started: now, expires: now + m.lifetimes.Initial, limit: req.Limit,
		}
		if i := find(live, req.Request); i >= 0 {
			decision = Decision{Outcome: Granted, Used: len(live)}
			if live[i].attempt != slot.attempt {
				decision.Outcome, slot.attempt = Renewed, 0
			}
			slot.started, slot.expires = live[i].started, max(live[i].expires, slot.expires)
			live[i] = slot
			return live
		}
		if req.Limit < 0 || len(live) < req.Limit {
			if m.maxUsers > 0 && len(live) == 0 && m.userCount.Load() >= m.maxUsers {
				err = failure("acquire", errQueue)
				return live
			}
			decision = Decision{Outcome: Granted, Used: len(live) + 1}
			return append(live, slot)
		}
		decision = denial(live, now)
		return live
	})
	return decision, err
}

// Holds says whether the slot is live.
func (m *Memory) Holds(id ID) (held bool) {
	m.user(id.User, func(live []memorySlot, _ time.Duration) []memorySlot {
		held = find(live, id.Request) >= 0
		return live
	})
	return held
}

// UserCount is how many users hold slots. Those whose slots are all dead count until they are pruned.
func (m *Memory) UserCount() int { return int(m.userCount.Load()) }

func denial(live []memorySlot, now time.Duration) Decision {
	decision := Decision{Outcome: Denied, Used: len(live)}
	if len(live) > 0 {
		holders := slices.SortedFunc(slices.Values(live), earliestFirst)
		decision.RetryAfter = holders[0].expires - now
		for _, slot := range holders[:min(20, len(holders))] {
			decision.Holders = append(decision.Holders, slot.request)
		}
	}
	return decision
}

func earliestFirst(a, b memorySlot) int { return cmp.Compare(a.expires, b.expires) }

// Heartbeat implements [Store]. It never fails.
func (m *Memory) Heartbeat(_ context.Context, ids ...ID) (beats Beats, err error) {
	for _, id := range ids {
		m.user(id.User, func(live []memorySlot, now time.Duration) []memorySlot {
			i := find(live, id.Request)
			switch {
			case i < 0:
				beats.Gone = append(beats.Gone, Gone{ID: id})
			case m.lifetimes.MaxAge > 0 && now-live[i].started > m.lifetimes.MaxAge:
				beats.Gone = append(beats.Gone, Gone{ID: id, MaxAge: true})
				return slices.Delete(live, i, i+1)
			default:
				beats.Extended++
				live[i].attempt, live[i].expires = 0, max(live[i].expires, now+m.lifetimes.Slot)
			}
			return live
		})
	}
	return beats, nil
}

// Release implements [Store]. It never fails.
func (m *Memory) Release(_ context.Context, ids ...ID) (releases Releases, err error) {
	for _, id := range ids {
		if m.remove(id, func(memorySlot) bool { return true }) {
			releases.Released = append(releases.Released, id)
		} else {
			releases.Absent++
		}
	}
	return releases, nil
}

// Undo implements [Store]. It never fails.
func (m *Memory) Undo(_ context.Context, id ID, attempt string) (undone bool, err error) {
	return m.remove(id, func(s memorySlot) bool { return attempt != "" && s.attempt == m.attempt(attempt) }), nil
}

// remove takes away a live slot that may go, and says whether there was one.
func (m *Memory) remove(id ID, may func(memorySlot) bool) (removed bool) {
	m.user(id.User, func(live []memorySlot, _ time.Duration) []memorySlot {
		i := find(live, id.Request)
		if i < 0 || !may(live[i]) {
			return live
		}
		removed = true
		return slices.Delete(live, i, i+1)
	})
	return removed
}

// Slots implements [Store]. It never fails.
func (m *Memory) Slots(_ context.Context, user string) (listed []Slot, err error) {
	m.user(user, func(live []memorySlot, now time.Duration) []memorySlot {
		for _, slot := range slices.SortedFunc(slices.Values(live), earliestFirst)[:min(1000, len(live))] {
			listed = append(listed, Slot{
				Request: slot.request, Age: now - slot.started, Remaining: slot.expires - now,
				Limit: slot.limit, Provenance: slot.provenance(),
			})
		}
		return live
	})
	return listed, nil
}

// Health implements [Store]: the process's own memory is always there.
func (m *Memory) Health() []Health {
	var health []Health
	for _, role := range Roles {
		health = append(health, Health{Role: role, Breaker: "closed"})
	}
	return health
}

// Close implements [Store] and does nothing.
func (m *Memory) Close() error { return nil }
