package slotstore

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// chunkSize is how many slots of a batch share one budget.
const chunkSize = 500

// Redis keeps slots in Redis 5 or newer, one cap for all sidecars with the same prefix. Every change is one script on
// Redis's own clock. It connects when it is first asked: that Redis is away is an answer's error, never one of
// [NewRedis].
type Redis struct {
	prefix     string
	lifetimes  Lifetimes
	events     Events
	standalone bool // neither a cluster nor sentinels

	acquires, heartbeats, releases *script

	acquire, heartbeat, release, admin *role
}

// NewRedis returns a store on the Redis that options name. It does not wait for it.
func NewRedis(options RedisOptions, lifetimes Lifetimes, events Events) *Redis {
	quietDriver()
	s := &Redis{prefix: options.Prefix, lifetimes: lifetimes, events: events, standalone: options.Mode == "standalone"}
	s.acquires = acquireScript.sharing(ms(lifetimes.Initial), ms(lifetimes.Slot))
	s.heartbeats = heartbeatScript.sharing(ms(lifetimes.Slot), ms(lifetimes.MaxAge))
	s.releases = releaseScript.sharing(ms(lifetimes.Initial))
	s.acquire = newRole(RoleAcquire, options, options.AcquireTimeout, events, func() []*call {
		keys, request := s.keysOf(probeUser), rand.Text()
		return []*call{probeFirst(keys), probeAcquire(keys, request), probeRelease(keys, request)}
	})
	s.heartbeat = newRole(RoleHeartbeat, options, options.HeartbeatTimeout, events, func() []*call {
		keys, request := s.keysOf(probeUser), rand.Text()
		return []*call{probeAcquire(keys, request), probeHeartbeat(keys, request), probeRelease(keys, request)}
	})
	// These take no slot, so that a full Redis still releases. release.lua writes even where nothing is held, so that a
	// store that refuses writes shows.
	s.release = newRole(RoleRelease, options, options.ReleaseTimeout, events, func() []*call {
		keys, request := s.keysOf(probeUser), rand.Text()
		return []*call{probeRelease(keys, request).with(keys, "undone", 1, request)}
	})
	s.admin = newRole(RoleAdmin, options, options.AdminTimeout, events, func() []*call {
		keys := s.keysOf(probeUser)
		return []*call{newCall(listScript, 1).with(keys), probeLooks(keys)}
	})
	if options.HeartbeatTimeout >= 10*heartbeatLinger {
		s.heartbeat.linger = heartbeatLinger
	}
	s.admin.once = s.readEviction
	clients := []*client{s.acquire.client, s.heartbeat.client, s.release.client, s.admin.client}
	for _, role := range s.roles() {
		role.beside = s.beside
		role.client.others = clients
		role.start()
	}
	return s
}

// readEviction asks what Redis does when it is full. Managed ones may refuse, and old ones lack the fields.
func (s *Redis) readEviction() {
	ctx, cancel := context.WithTimeout(context.Background(), lateReply)
	defer cancel()
	memory, err := s.admin.client.Info(ctx, "memory").Result()
	policy, ok := infoField(memory, "maxmemory_policy")
	if err != nil || !ok || s.events.Eviction == nil {
		return
	}
	limit, _ := infoField(memory, "maxmemory")
	maxBytes, _ := strconv.ParseInt(limit, 10, 64) // 0 where it is missing: no limit
	s.events.Eviction(policy, maxBytes)
}

func infoField(info, name string) (value string, ok bool) {
	for line := range strings.Lines(info) {
		if value, ok = strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

// Acquire implements [Store].
func (s *Redis) Acquire(ctx context.Context, req Request) (Decision, error) {
	return s.acquireKeys(ctx, s.keys(req.User), req)
}

func (s *Redis) acquireKeys(ctx context.Context, keys []string, req Request) (Decision, error) {
	c := newCall(s.acquires, 1)
	c.with(keys, req.Request, req.Limit, req.Attempt, req.IP+"\n"+req.URI+"\n"+req.UserAgent)
	c.late = func() {
		if decision, err := s.decision(c.runs[0]); decision.Outcome == Granted || mayHaveTaken(err) {
			s.events.abandoned(req.ID, req.Attempt)
		}
	}
	if err := s.acquire.do(ctx, c); err != nil {
		return Decision{}, failure("acquire", err)
	}
	decision, err := s.decision(c.runs[0])
	if mayHaveTaken(err) {
		s.events.abandoned(req.ID, req.Attempt)
	}
	if err != nil {
		return Decision{}, failure("acquire", err)
	}
	return decision, nil
}

// mayHaveTaken says whether a slot may have been taken behind this error. On a key of a wrong type the script changes
// nothing.
func mayHaveTaken(err error) bool { return err != nil && classify(err) != WrongType }

// Heartbeat implements [Store]. Up to 500 slots share one budget.
func (s *Redis) Heartbeat(ctx context.Context, ids ...ID) (Beats, error) {
	var beats Beats
	err := s.each(ctx, s.heartbeat, s.heartbeats, ids, nil, func(id ID, answer answer) {
		switch answer {
		case yes:
			beats.Extended++
		case unanswered:
			beats.Unrecorded++
		default:
			beats.Gone = append(beats.Gone, Gone{ID: id, MaxAge: answer == other})
		}
	})
	if err != nil {
		return beats, failure("heartbeat", err)
	}
	return beats, nil
}

// Release implements [Store]. Up to 500 slots share one budget.
func (s *Redis) Release(ctx context.Context, ids ...ID) (Releases, error) {
	var releases Releases
	expired := 0
	err := s.each(ctx, s.release, s.releases, ids, []any{""}, func(id ID, answer answer) {
		switch answer {
		case yes:
			releases.Released = append(releases.Released, id)
		case unanswered:
			releases.Unrecorded = append(releases.Unrecorded, id)
		default:
			releases.Absent++
			if answer == other {
				expired++
			}
		}
	})
	s.events.expired(expired)
	if err != nil {
		return releases, failure("release", err)
	}
	return releases, nil
}

// Undo implements [Store].
func (s *Redis) Undo(ctx context.Context, id ID, attempt string) (undone bool, err error) {
	if attempt == "" {
		return false, nil // to the script it would be a release
	}
	err = s.each(Again(ctx), s.release, s.releases, []ID{id}, []any{attempt}, func(_ ID, answer answer) { undone = answer == yes })
	if err != nil {
		return false, failure("undo", err)
	}
	return undone, nil
}

// again marks the context of who tries again.
type again struct{}

// Again is for calls that try again what the store has not taken, or that nobody waits for: they are not counted as let through.
func Again(ctx context.Context) context.Context { return context.WithValue(ctx, again{}, true) }

// each runs a script for every user of ids, in chunks, and visits each id with its answer. The error is the first one;
// the chunks behind it are tried all the same.
func (s *Redis) each(ctx context.Context, role *role, script *script, ids []ID, args []any, visit func(ID, answer)) error {
	var first error
	for chunk := range slices.Chunk(ids, chunkSize) {
		byUser, order := make(map[string][]string, len(chunk)), make([]string, 0, len(chunk))
		for _, id := range chunk {
			if byUser[id.User] == nil {
				order = append(order, id.User)
			}
			byUser[id.User] = append(byUser[id.User], id.Request)
		}
		c := newCall(script, len(order))
		for _, user := range order {
			all := append(slices.Clone(args), len(byUser[user]))
			for _, request := range byUser[user] {
				all = append(all, request)
			}
			c.with(s.keys(user), all...)
		}
		c.again = first != nil || ctx.Value(again{}) != nil
		err := role.do(ctx, c)
		for i, user := range order {
			requests := byUser[user]
			answers, runErr := make([]any, len(requests)), err
			if err == nil {
				answers, runErr = list(c.runs[i], len(requests))
			}
			for j, request := range requests {
				result := unanswered
				if runErr == nil {
					if number, ok := answers[j].(int64); ok {
						result = answer(number)
					} else {
						runErr = errReply
					}
				}
				visit(ID{User: user, Request: request}, result)
			}
			if first == nil {
				first = runErr
			}
		}
	}
	return first
}

// Slots implements [Store].
func (s *Redis) Slots(ctx context.Context, user string) ([]Slot, error) {
	slots, err := s.slots(ctx, s.keys(user))
	if err != nil {
		return nil, failure("list", err)
	}
	return slots, nil
}

func (s *Redis) slots(ctx context.Context, keys []string) ([]Slot, error) {
	c := newCall(listScript, 1)
	c.with(keys)
	if err := s.admin.do(ctx, c); err != nil {
		return nil, err
	}
	rows, err := list(c.runs[0], 0)
	if err != nil {
		return nil, err
	}
	slots := make([]Slot, 0, len(rows))
	for _, row := range rows {
		slot, ok := decodeSlot(row)
		if !ok {
			return nil, errReply
		}
		slots = append(slots, slot)
	}
	return slots, nil
}

// Health implements [Store].
func (s *Redis) Health() []Health {
	var health []Health
	for _, role := range s.roles() {
		health = append(health, role.health())
	}
	return health
}

func (s *Redis) roles() []*role { return []*role{s.acquire, s.heartbeat, s.release, s.admin} }

// Close implements [Store].
func (s *Redis) Close() error {
	for _, role := range s.roles() {
		role.end() // so that all wait at once for what they have sent
	}
	var errs []error
	for _, role := range s.roles() {
		errs = append(errs, role.close())
	}
	return errors.Join(errs...)
}
