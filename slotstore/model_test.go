package slotstore_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// model is the store in its plainest form, with a clock of its own.
type model struct {
	now   time.Duration
	users map[string]map[string]modelSlot
}

type modelSlot struct {
	started, expires time.Duration
	attempt          string
}

// live drops what is dead, as nobody can tell it from what never was.
func (m *model) live(user string) map[string]modelSlot {
	if m.users[user] == nil {
		m.users[user] = make(map[string]modelSlot)
	}
	maps.DeleteFunc(m.users[user], func(_ string, s modelSlot) bool { return s.expires <= m.now })
	return m.users[user]
}

func (m *model) acquire(req slotstore.Request) slotstore.Decision {
	live := m.live(req.User)
	held, ok := live[req.Request]
	switch {
	case ok:
		held.attempt, held.expires = "", max(held.expires, m.now+initialTTL)
		live[req.Request] = held
		return slotstore.Decision{Outcome: slotstore.Renewed, Used: len(live)}
	case req.Limit < 0 || len(live) < req.Limit:
		live[req.Request] = modelSlot{m.now, m.now + initialTTL, req.Attempt}
		return slotstore.Decision{Outcome: slotstore.Granted, Used: len(live)}
	}
	denied := slotstore.Decision{Used: len(live)}
	earliest := slices.SortedFunc(maps.Keys(live), func(a, b string) int {
		return cmp.Or(cmp.Compare(live[a].expires, live[b].expires), cmp.Compare(a, b))
	})
	if len(earliest) > 0 {
		denied.RetryAfter, denied.Holders = live[earliest[0]].expires-m.now, earliest
	}
	return denied
}

func (m *model) heartbeat(id slotstore.ID) slotstore.Beats {
	live := m.live(id.User)
	held, ok := live[id.Request]
	switch {
	case !ok:
		return slotstore.Beats{Gone: []slotstore.Gone{{ID: id}}}
	case m.now-held.started > maxAge:
		delete(live, id.Request)
		return slotstore.Beats{Gone: []slotstore.Gone{{ID: id, MaxAge: true}}}
	}
	held.attempt, held.expires = "", max(held.expires, m.now+slotTTL)
	live[id.Request] = held
	return slotstore.Beats{Extended: 1}
}

func (m *model) release(id slotstore.ID) slotstore.Releases {
	if _, ok := m.live(id.User)[id.Request]; !ok {
		return slotstore.Releases{Absent: 1}
	}
	delete(m.users[id.User], id.Request)
	return slotstore.Releases{Released: []slotstore.ID{id}}
}

func (m *model) undo(id slotstore.ID, attempt string) bool {
	held, ok := m.live(id.User)[id.Request]
	if ok = ok && held.attempt == attempt; ok {
		delete(m.users[id.User], id.Request)
	}
	return ok
}

// followsTheModel drives a fresh store and the model with the same random steps and wants the same answers.
func followsTheModel(t *rapid.T, store slotstore.Store, advance func(time.Duration)) {
	ctx := context.Background()
	m := &model{users: make(map[string]map[string]modelSlot)}
	drawID := func(t *rapid.T) slotstore.ID {
		return id(rapid.SampledFrom([]string{"u1", "a/b", "\xff"}).Draw(t, "user"), rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(t, "request"))
	}
	drawn := 0
	same := func(t *rapid.T, err error, got, want any) {
		if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); err != nil || g != w {
			t.Fatalf("got %s, %v\nwant %s", g, err, w)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) {
			drawn++
			req := slotstore.Request{ID: drawID(t), Limit: rapid.IntRange(-1, 3).Draw(t, "limit"), Attempt: fmt.Sprint("a", drawn)}
			got, err := store.Acquire(ctx, req)
			want := m.acquire(req)
			// Slots that expire in the same millisecond have no order of their own.
			slices.Sort(got.Holders)
			slices.Sort(want.Holders)
			same(t, err, got, want)
		},
		"heartbeat": func(t *rapid.T) {
			id := drawID(t)
			got, err := store.Heartbeat(ctx, id)
			same(t, err, got, m.heartbeat(id))
		},
		"release": func(t *rapid.T) {
			id := drawID(t)
			got, err := store.Release(ctx, id)
			same(t, err, got, m.release(id))
		},
		"undo": func(t *rapid.T) {
			id, attempt := drawID(t), fmt.Sprint("a", max(1, drawn-rapid.IntRange(0, 3).Draw(t, "back")))
			got, err := store.Undo(ctx, id, attempt)
			same(t, err, got, m.undo(id, attempt))
		},
		"advance": func(t *rapid.T) {
			d := time.Duration(rapid.Int64Range(1, int64(slotTTL/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
			advance(d)
			m.now += d
		},
		"": func(t *rapid.T) {
			for user := range m.users {
				slots, err := store.Slots(ctx, user)
				got, want := make(map[string]time.Duration), make(map[string]time.Duration)
				for _, slot := range slots {
					got[slot.Request] = slot.Remaining
				}
				for request, slot := range m.live(user) {
					want[request] = slot.expires - m.now
				}
				same(t, err, got, want)
			}
		},
	})
}

// inBubble hides from rapid that this is a *testing.T, whose deadline has no meaning on a bubble's clock.
type inBubble struct{ testing.TB }

func TestMemoryFollowsTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(t *rapid.T) {
			followsTheModel(t, slotstore.NewMemory(lifetimes, slotstore.Events{}, 0), time.Sleep)
		})
	})
}

func TestRedisFollowsTheModel(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	store := newRedis(t, server, slotstore.Events{})
	rapid.Check(t, func(t *rapid.T) {
		if err := server.Client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		followsTheModel(t, store, server.Advance)
	})
}

// step is one call of a concurrent history.
type step struct {
	op, request string
	limit       int
}

// held is a user's live slots; no slot expires within a history.
var linearizable = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		held, in := strings.Fields(state.(string)), input.(step)
		i, found := slices.BinarySearch(held, in.request)
		switch in.op {
		case "heartbeat":
			return output == found, state
		case "release":
			if found {
				held = slices.Delete(held, i, i+1)
			}
			return output == found, strings.Join(held, " ")
		}
		want := slotstore.Decision{Outcome: slotstore.Renewed, Used: len(held)}
		switch {
		case found:
		case len(held) < in.limit:
			held = slices.Insert(held, i, in.request)
			want = slotstore.Decision{Outcome: slotstore.Granted, Used: len(held)}
		default:
			want.Outcome = slotstore.Denied
		}
		got := output.(slotstore.Decision)
		return got.Outcome == want.Outcome && got.Used == want.Used, strings.Join(held, " ")
	},
}

func TestConcurrentHistoriesOfTwoSidecarsAreLinearizable_A03(t *testing.T) {
	server := redistest.Start(t)
	stores := []slotstore.Store{newRedis(t, server, slotstore.Events{}), newRedis(t, server, slotstore.Events{})}
	for round := range 20 {
		user := fmt.Sprint("user", round)
		var (
			mu      sync.Mutex
			history []porcupine.Operation
			clients sync.WaitGroup
		)
		start := time.Now()
		for client := range 6 {
			clients.Go(func() {
				store := stores[client%len(stores)]
				for n := range 10 {
					in := step{[]string{"acquire", "acquire", "heartbeat", "release"}[(client+n*n)%4], fmt.Sprint("r", (client*3+n)%5), 2}
					call := time.Since(start)
					out, err := perform(t.Context(), store, user, in)
					end := time.Since(start)
					if err != nil {
						t.Errorf("%+v: %v", in, err)
						return
					}
					mu.Lock()
					history = append(history, porcupine.Operation{
						ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(end),
					})
					mu.Unlock()
				}
			})
		}
		clients.Wait()
		if !porcupine.CheckOperations(linearizable, history) {
			t.Fatalf("no order of these calls explains their answers: %+v", history)
		}
	}
}

func perform(ctx context.Context, store slotstore.Store, user string, in step) (any, error) {
	switch in.op {
	case "heartbeat":
		beats, err := store.Heartbeat(ctx, id(user, in.request))
		return beats.Extended == 1, err
	case "release":
		done, err := store.Release(ctx, id(user, in.request))
		return len(done.Released) == 1, err
	}
	return store.Acquire(ctx, slotstore.Request{ID: id(user, in.request), Limit: in.limit, Attempt: attempts()})
}
