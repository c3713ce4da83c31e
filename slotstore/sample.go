package slotstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file looks at all users: for people and for charts, in steps and within a time, on the admin role alone. It
// cleans nothing.

// UserSlots is how many live slots a user holds.
type UserSlots struct {
	User  string
	Slots int
}

// Users are those who hold the most slots.
type Users struct {
	Users   []UserSlots // most slots first, at most 100
	Partial bool        // the time was over before all had been looked at
}

// Sample is a look at all live slots of all sidecars.
type Sample struct {
	Slots   int           `json:"slots"`
	Users   [4]int        `json:"users"`     // who hold 1, 2, 3, and 4 or more
	Oldest  time.Duration `json:"oldest_ns"` // since the oldest slot was granted
	Partial bool          `json:"partial"`
}

const (
	usersMost = 100
	// scanStep is how many keys Redis looks at in one step, which is a millisecond of its time at the most.
	scanStep = 1000
	// sampleEvery is how long a sample stands for all sidecars, and sampleClaim how long the one that makes it may take.
	sampleEvery = time.Minute
	sampleClaim = 5 * time.Second
)

func (s *Sample) add(slots int, oldest time.Duration) {
	if slots > 0 {
		s.Slots += slots
		s.Users[min(slots, len(s.Users))-1]++
		s.Oldest = max(s.Oldest, oldest)
	}
}

// most keeps those who hold the most, in the order of [Users], each once: SCAN may find a key twice.
func most(users []UserSlots) []UserSlots {
	slices.SortFunc(users, func(a, b UserSlots) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(b.Slots, a.Slots))
	})
	users = slices.CompactFunc(users, func(a, b UserSlots) bool { return a.User == b.User })
	slices.SortStableFunc(users, func(a, b UserSlots) int { return cmp.Compare(b.Slots, a.Slots) })
	return users[:min(usersMost, len(users))]
}

// Users implements [Store].
func (s *Redis) Users(ctx context.Context, atLeast int) (Users, error) {
	var found Users
	partial, err := s.look(ctx, s.admin.budget*9/10, func(escaped string, slots int, _ time.Duration) {
		if user, err := url.PathUnescape(escaped); err == nil && slots >= max(1, atLeast) {
			found.Users = append(found.Users, UserSlots{User: user, Slots: slots})
			if len(found.Users) >= 20*usersMost {
				found.Users = most(found.Users)
			}
		}
	})
	if err != nil {
		return Users{}, failure("scan", err)
	}
	return Users{Users: most(found.Users), Partial: partial}, nil
}

// Sample implements [Store]. The first sidecar that finds the last sample expired makes the next one for all.
func (s *Redis) Sample(ctx context.Context) (Sample, bool, error) {
	sample, ok, err := s.sample(ctx)
	if err != nil {
		return Sample{}, false, failure("scan", err)
	}
	return sample, ok, nil
}

// claimed stands under the sample's key while somebody makes the next one.
const claimed = "claimed"

func (s *Redis) sample(ctx context.Context) (sample Sample, ok bool, _ error) {
	key := s.prefix + ":sample"
	var last string
	err := s.admin.direct(ctx, func(ctx context.Context) error {
		text, err := s.admin.client.Get(ctx, key).Result()
		if last = text; !errors.Is(err, redis.Nil) {
			return err
		}
		won, err := s.admin.client.SetNX(ctx, key, claimed, sampleClaim).Result()
		if !won {
			last = claimed
		}
		return err
	})
	switch {
	case err != nil || last == claimed:
		return Sample{}, false, err
	case last != "":
		err = json.Unmarshal([]byte(last), &sample)
		return sample, err == nil, err
	}
	sample.Partial, err = s.look(ctx, sampleClaim*9/10, func(_ string, slots int, oldest time.Duration) { sample.add(slots, oldest) })
	if err != nil {
		return Sample{}, false, err
	}
	text, err := json.Marshal(sample)
	if err != nil {
		return Sample{}, false, err
	}
	err = s.admin.direct(ctx, func(ctx context.Context) error { return s.admin.client.Set(ctx, key, text, sampleEvery).Err() })
	return sample, true, err
}

// look visits each user, by her name as it stands in keys, on every primary, until the time is over.
func (s *Redis) look(ctx context.Context, within time.Duration, visit func(escaped string, slots int, oldest time.Duration)) (partial bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var one sync.Mutex
	node := func(ctx context.Context, client *redis.Client) error {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var keys []string
			err := s.admin.direct(ctx, func(ctx context.Context) (scanErr error) {
				keys, cursor, scanErr = client.Scan(ctx, cursor, s.prefix+":{*}:slots", scanStep).Result()
				return scanErr
			})
			if err == nil {
				err = s.count(ctx, keys, func(escaped string, slots int, oldest time.Duration) {
					one.Lock()
					defer one.Unlock()
					visit(escaped, slots, oldest)
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	switch client := s.admin.client.UniversalClient.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, node)
	case *redis.Client:
		err = node(ctx, client)
	}
	if ctx.Err() != nil {
		return true, nil
	}
	return false, err
}

// count visits the users of these keys.
func (s *Redis) count(ctx context.Context, keys []string, visit func(escaped string, slots int, oldest time.Duration)) error {
	var users []string
	c := newCall(sampleScript, len(keys))
	for _, key := range keys {
		escaped := strings.TrimSuffix(strings.TrimPrefix(key, s.prefix+":{"), "}:slots")
		if escaped != probeUser {
			users = append(users, escaped)
			c.with(s.keysOf(escaped))
		}
	}
	if len(users) == 0 {
		return nil
	}
	if err := s.admin.do(ctx, c); err != nil {
		return err
	}
	for i, escaped := range users {
		fields, err := list(c.runs[i], 2)
		if classify(err) == WrongType {
			continue // somebody else's key
		}
		if err != nil {
			return err
		}
		slots, ok1 := fields[0].(int64)
		oldest, ok2 := fields[1].(int64)
		if !ok1 || !ok2 {
			return errReply
		}
		visit(escaped, int(slots), time.Duration(oldest)*time.Millisecond)
	}
	return nil
}

// direct runs commands that are no script, within the role's budget and breaker.
func (r *role) direct(ctx context.Context, do func(ctx context.Context) error) error {
	if !r.allow() {
		return errBreaker
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.budget)
	defer cancel()
	err := do(ctx)
	r.events.called(r.role, "scan", time.Since(began))
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(began) >= r.budget {
		r.report(began, err) // else the looker's own time was over
	}
	return err
}

// Users implements [Store]. It never fails.
func (m *Memory) Users(_ context.Context, atLeast int) (Users, error) {
	var users []UserSlots
	m.look(func(user string, slots int, _ time.Duration) {
		if slots >= max(1, atLeast) {
			users = append(users, UserSlots{User: user, Slots: slots})
		}
	})
	return Users{Users: most(users)}, nil
}

// Sample implements [Store]. It never fails.
func (m *Memory) Sample(context.Context) (sample Sample, ok bool, err error) {
	m.look(func(_ string, slots int, oldest time.Duration) { sample.add(slots, oldest) })
	return sample, true, nil
}

// look visits each user.
func (m *Memory) look(visit func(user string, slots int, oldest time.Duration)) {
	for i := range m.shards {
		shard := &m.shards[i]
		shard.mu.Lock()
		now := time.Since(m.epoch)
		for user, slots := range shard.users {
			live, oldest := 0, time.Duration(0)
			for _, slot := range slots {
				if slot.expires > now {
					live++
					oldest = max(oldest, now-slot.started)
				}
			}
			visit(user, live, oldest)
		}
		shard.mu.Unlock()
	}
}
