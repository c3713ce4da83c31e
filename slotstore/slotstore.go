// Package slotstore keeps the slots that cap how many streams a user runs at once.
//
// A slot is one user's right to one running stream: a user, a request id and an expiry. Whoever starts a stream
// acquires a slot, keeps it with heartbeats and releases it at the end; a slot that nobody keeps is dead at its
// expiry, whether or not anything has pruned it yet. There are two stores, [Memory] and [Redis], and one
// conformance suite that holds both to these promises:
//
//   - To acquire a live slot again renews it and counts it once, at and over the limit too.
//   - No interleaving of callers gives a user more live slots than the limit.
//   - A denial changes nothing but that dead slots are pruned.
//   - Neither a renewal nor a heartbeat ever shortens a slot, and a heartbeat never takes one.
//   - A release frees the slot at once and may be repeated.
//   - Users never share a slot, and any bytes are a legal user.
//   - An error says nothing about the slot: the work may or may not have been done.
//
// Only durations cross this boundary. Instants belong to the clock of the store (Redis's own, or the process's
// monotonic one), and no instant of one clock is ever compared with one of another.
package slotstore

import (
	"context"
	"time"
)

// ID names one slot: the user whose cap it counts towards and nginx's request id.
type ID struct {
	User    string // any bytes, compared byte for byte
	Request string // unique to the stream
}

// Request asks for a slot. Its zero Limit denies.
type Request struct {
	ID
	// Limit is how many live slots the user may hold: 0 is none, a negative one is unlimited.
	Limit int
	// Attempt is a token that no other acquire uses. [Store.Undo] takes back only what this attempt took.
	Attempt string
	Provenance
}

// Provenance is what support is shown of a stream. It decides nothing; empty fields are unknown.
type Provenance struct {
	IP, URI, UserAgent string
}

// Outcome is the answer to an acquire. The zero value denies.
type Outcome int

// The outcomes of an acquire.
const (
	Denied  Outcome = iota // the user already holds as many live slots as the limit allows
	Granted                // a slot was taken, by this attempt
	Renewed                // the request id held a live slot already; it is counted once
)

// Decision is a store's answer to an acquire.
type Decision struct {
	Outcome Outcome
	// Used is how many live slots the user holds, the granted one included.
	Used int
	// RetryAfter is, on a denial, the time until the user's earliest slot expires; 0 if she holds none.
	RetryAfter time.Duration
	// Holders are, on a denial, up to 20 request ids that hold the user's slots, earliest expiry first.
	Holders []string
}

// Gone is a slot that a heartbeat could not extend.
type Gone struct {
	ID
	// MaxAge says that the slot was live but older than [Lifetimes].MaxAge, and is removed now. False means that it
	// was not held: released, expired, lost with the store's memory or never taken.
	MaxAge bool
}

// Beats is a store's answer to heartbeats.
type Beats struct {
	Extended   int
	Gone       []Gone
	Unrecorded int // how many the store did not answer; only with an error
}

// Releases is a store's answer to releases.
type Releases struct {
	Released   []ID // live until now
	Absent     int  // already released, expired or never taken
	Unrecorded []ID // not answered, perhaps still held; only with an error
}

// Slot is a live slot as support sees it.
type Slot struct {
	Request   string
	Age       time.Duration // since the slot was granted
	Remaining time.Duration // until it expires, always positive
	Limit     int           // the limit it was acquired with
	Provenance
}

// Health is what one role of a store last saw.
type Health struct {
	Role      string    // one of [Roles]
	Breaker   string    // closed, open or half-open
	LastError string    // of the last call; empty after a success
	Since     time.Time // of its first failure since the last success, on this process's clock; zero while it is well
	Waiting   int       // calls in its queue
}

// Roles are what a connection to a store can be for. Each has a client, a pool and a budget of its own.
var Roles = []string{RoleAcquire, RoleHeartbeat, RoleRelease, RoleAdmin} //nolint:gochecknoglobals // a constant list

// The roles.
const (
	RoleAcquire   = "acquire"
	RoleHeartbeat = "heartbeat"
	RoleRelease   = "release"
	RoleAdmin     = "admin"
)

// Lifetimes say how long slots live. Both stores work in whole milliseconds.
type Lifetimes struct {
	Slot    time.Duration // a heartbeat extends to now + Slot
	Initial time.Duration // a grant and a renewing acquire extend to now + Initial
	MaxAge  time.Duration // the first heartbeat past it removes the slot; 0 is no maximum
}

// Events are what a store tells its owner beside its answers. They are called from any goroutine, must not block,
// and a nil one is not called.
type Events struct {
	// Expired is called with how many dead slots were just pruned: streams that ended without a release.
	Expired func(slots int)
	// Abandoned is called for an acquire whose caller got an error and that took, or may have taken, a slot all the
	// same. The owner has [Store.Undo] called until it is settled.
	Abandoned func(id ID, attempt string)
	// Called is called with how long a caller waited for Redis; op is acquire, heartbeat, release, list or scan.
	Called func(role, op string, took time.Duration)
	// Shed is called for a call that found its role's queue full.
	Shed func(role string)
	// Circuit is called when a role's breaker has opened or closed.
	Circuit func(Circuit)
	// SelfTest is called with a role's first self-test, and then with each one that ends otherwise than the one before:
	// well (nil), or with another reason.
	SelfTest func(role string, err error)
	// Eviction is called once, with what Redis does when it is full, if it lets itself be asked.
	Eviction func(policy string, maxBytes int64)
}

func (e Events) called(role, op string, took time.Duration) {
	if e.Called != nil {
		e.Called(role, op, took)
	}
}

func (e Events) shed(role string) {
	if e.Shed != nil {
		e.Shed(role)
	}
}

func (e Events) expired(slots int) {
	if e.Expired != nil && slots > 0 {
		e.Expired(slots)
	}
}

func (e Events) abandoned(id ID, attempt string) {
	if e.Abandoned != nil {
		e.Abandoned(id, attempt)
	}
}

// Store keeps slots. Its methods may be called from any goroutine. Every error is an [*Error] with a reason.
type Store interface {
	// Acquire takes, renews or denies a slot. A denial is an answer, not an error.
	Acquire(ctx context.Context, req Request) (Decision, error)
	// Heartbeat extends the live ones of these slots to now + [Lifetimes].Slot. What was done before an error stays
	// done; repeating is safe. An id that is named twice is answered once.
	Heartbeat(ctx context.Context, ids ...ID) (Beats, error)
	// Release gives these slots back. What was done before an error stays done; repeating is safe.
	Release(ctx context.Context, ids ...ID) (Releases, error)
	// Undo takes the slot back if attempt took it and nothing has renewed or extended it since.
	Undo(ctx context.Context, id ID, attempt string) (undone bool, err error)
	// Slots lists up to 1,000 live slots of one user, earliest expiry first. It is for people, not for the request path.
	Slots(ctx context.Context, user string) ([]Slot, error)
	// Users are those who hold at least so many slots. It takes at most the admin role's budget and is partial beyond it.
	Users(ctx context.Context, atLeast int) (Users, error)
	// Sample is a look at all slots, at most a minute old; false where another sidecar is making it now.
	Sample(ctx context.Context) (sample Sample, ok bool, err error)
	// Health reports each role without waiting for anything.
	Health() []Health
	// Close ends the store's connections. Calls under way end with an error.
	Close() error
}
