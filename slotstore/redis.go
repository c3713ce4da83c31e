package slotstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
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
	sampleScript    = newScript("scan", sampleLua)
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

	acquire, heartbeat, release, admin *role
}

// NewRedis returns a store on the Redis that options name. It does not wait for it.
func NewRedis(options RedisOptions, lifetimes Lifetimes, events Events) *Redis {
	quietDriver()
	s := &Redis{prefix: options.Prefix, lifetimes: lifetimes, events: events, standalone: options.Mode == "standalone"}
	s.acquire = newRole(RoleAcquire, options, options.AcquireTimeout, events, func() []*call {
		keys, request := s.keysOf(probeUser), rand.Text()
		return []*call{probeAcquire(keys, request), probeRelease(keys, request)}
	})
	s.heartbeat = newRole(RoleHeartbeat, options, options.HeartbeatTimeout, events, func() []*call {
		keys, request := s.keysOf(probeUser), rand.Text()
		return []*call{probeAcquire(keys, request), probeHeartbeat(keys, request), probeRelease(keys, request)}
	})
	// These take no slot, so that a full Redis still releases. release.lua writes even where nothing is held, so that a
	// store that refuses writes shows.
	s.release = newRole(RoleRelease, options, options.ReleaseTimeout, events, func() []*call {
		return []*call{probeRelease(s.keysOf(probeUser), rand.Text())}
	})
	s.admin = newRole(RoleAdmin, options, options.AdminTimeout, events, func() []*call {
		return []*call{newCall(listScript, 1).with(s.keysOf(probeUser))}
	})
	s.admin.once = s.readEviction
	clients := []*client{s.acquire.client, s.heartbeat.client, s.release.client, s.admin.client}
	for _, role := range s.roles() {
		role.beside = s.otherSlots
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

// probeLifetime is how long a probe's slot stays where its release is lost.
const probeLifetime = 2000 // ms

func probeAcquire(keys []string, request string) *call {
	return newCall(acquireScript, 1).with(keys, request, -1, probeLifetime, probeLifetime, "probe", "\n\n")
}

func probeHeartbeat(keys []string, request string) *call {
	return newCall(heartbeatScript, 1).with(keys, probeLifetime, 0, request)
}

func probeRelease(keys []string, request string) *call {
	return newCall(releaseScript, 1).with(keys, "", request)
}

// otherSlots looks at keys in the other quarters of a cluster's slots. A cluster's node that is asked in standalone mode
// may be the one that keeps the probe key, and is not the one that keeps most users'. Nothing is ever kept under these
// keys, and no user can own them either.
func (s *Redis) otherSlots() []*call {
	if !s.standalone {
		return nil
	}
	c := newCall(listScript, 3)
	for _, user := range []string{"%probe2", "%probe3", "%probe4"} {
		c.with(s.keysOf(user))
	}
	return []*call{c}
}

// probeUser is no user's key: in a key, a percent sign is always followed by two hex digits.
const probeUser = "%probe"

// keys are a user's slots and details. They share a hash tag, so that a cluster keeps them on one node.
func (s *Redis) keys(user string) []string { return s.keysOf(escape(user)) }

func (s *Redis) keysOf(escaped string) []string {
	tag := s.prefix + ":{" + escaped + "}:"
	return []string{tag + "slots", tag + "details"}
}

// escape percent-encodes what could end a hash tag, form a pattern or be taken for another user.
func escape(user string) string {
	plain := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._@-", c) >= 0
	}
	if !slices.ContainsFunc([]byte(user), func(c byte) bool { return !plain(c) }) {
		return user
	}
	var escaped strings.Builder
	for i := range len(user) {
		if c := user[i]; plain(c) {
			escaped.WriteByte(c)
		} else {
			fmt.Fprintf(&escaped, "%%%02X", c)
		}
	}
	return escaped.String()
}

func ms(d time.Duration) int64 { return d.Milliseconds() }

// Acquire implements [Store].
func (s *Redis) Acquire(ctx context.Context, req Request) (Decision, error) {
	return s.acquireKeys(ctx, s.keys(req.User), req)
}

func (s *Redis) acquireKeys(ctx context.Context, keys []string, req Request) (Decision, error) {
	c := newCall(acquireScript, 1)
	c.with(keys, req.Request, req.Limit, ms(s.lifetimes.Initial), ms(s.lifetimes.Slot), req.Attempt,
		req.IP+"\n"+req.URI+"\n"+req.UserAgent)
	c.late = func() {
		if decision, err := s.decision(c.runs[0]); err != nil || decision.Outcome == Granted {
			s.events.abandoned(req.ID, req.Attempt)
		}
	}
	if err := s.acquire.do(ctx, c); err != nil {
		return Decision{}, failure("acquire", err)
	}
	decision, err := s.decision(c.runs[0])
	if err != nil {
		s.events.abandoned(req.ID, req.Attempt)
		return Decision{}, failure("acquire", err)
	}
	return decision, nil
}

// decision decodes what acquire.lua returns, and reports the slots that it pruned.
func (s *Redis) decision(r run) (Decision, error) {
	fields, err := list(r, 4)
	if err != nil {
		return Decision{}, err
	}
	var head [4]int64
	for i := range head {
		number, ok := fields[i].(int64)
		if !ok {
			return Decision{}, errReply
		}
		head[i] = number
	}
	s.events.expired(int(head[3]))
	decision := Decision{
		Outcome: Outcome(head[0]), Used: int(head[1]), RetryAfter: time.Duration(head[2]) * time.Millisecond,
	}
	for _, holder := range fields[4:] {
		id, ok := holder.(string)
		if !ok {
			return Decision{}, errReply
		}
		decision.Holders = append(decision.Holders, id)
	}
	return decision, nil
}

// errReply is for an answer that no script of ours gives: something else sits at that address.
var errReply = errors.New("not an answer of our script")

// list is the reply of one run as a list of at least so many elements.
func list(r run, atLeast int) ([]any, error) {
	if r.err != nil {
		return nil, r.err
	}
	elements, ok := r.reply.([]any)
	if !ok || len(elements) < atLeast {
		return nil, errReply
	}
	return elements, nil
}

// Heartbeat implements [Store]. Up to 500 slots share one budget.
func (s *Redis) Heartbeat(ctx context.Context, ids ...ID) (Beats, error) {
	var beats Beats
	err := s.each(ctx, s.heartbeat, heartbeatScript, ids, []any{ms(s.lifetimes.Slot), ms(s.lifetimes.MaxAge)},
		func(id ID, answer answer) {
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
	err := s.each(ctx, s.release, releaseScript, ids, []any{""}, func(id ID, answer answer) {
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
	err = s.each(ctx, s.release, releaseScript, []ID{id}, []any{attempt}, func(_ ID, answer answer) { undone = answer == yes })
	if err != nil {
		return false, failure("undo", err)
	}
	return undone, nil
}

// answer is what heartbeat.lua and release.lua say of one request id.
type answer int64

const (
	no         answer = 0  // not held
	yes        answer = 1  // extended, released
	other      answer = -1 // past its maximum age; past its expiry
	unanswered answer = -2
)

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
			c.with(s.keys(user), append(slices.Clone(args), anys(byUser[user])...)...)
		}
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

func anys(strings []string) []any {
	all := make([]any, len(strings))
	for i, s := range strings {
		all[i] = s
	}
	return all
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

// decodeSlot reads one row of list.lua.
func decodeSlot(row any) (Slot, bool) {
	fields, ok := row.([]any)
	if !ok || len(fields) != 4 {
		return Slot{}, false
	}
	request, ok1 := fields[0].(string)
	remaining, ok2 := fields[1].(int64)
	age, ok3 := fields[2].(int64)
	detail, ok4 := fields[3].(string)
	slot := Slot{
		Request: request, Age: time.Duration(age) * time.Millisecond, Remaining: time.Duration(remaining) * time.Millisecond,
	}
	if parts := strings.SplitN(detail, "\n", 6); len(parts) == 6 {
		slot.Limit, _ = strconv.Atoi(parts[1]) // written by acquire.lua with %d
		slot.Provenance = Provenance{IP: parts[3], URI: parts[4], UserAgent: parts[5]}
	}
	return slot, ok1 && ok2 && ok3 && ok4
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
