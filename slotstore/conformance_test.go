package slotstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// world is a store in a world whose time a test can move.
type world struct {
	*testing.T
	store   slotstore.Store
	advance func(time.Duration)
	expired *int // what the store has told of
}

const (
	slotTTL    = 2 * time.Minute
	initialTTL = time.Minute
	maxAge     = 10 * time.Minute
)

var lifetimes = slotstore.Lifetimes{Slot: slotTTL, Initial: initialTTL, MaxAge: maxAge}

// bothStores holds each store to one promise.
func bothStores(t *testing.T, promise func(w *world)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{T: t, advance: time.Sleep, expired: new(int)}
			w.store = slotstore.NewMemory(lifetimes, w.events(), 0)
			promise(w)
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		server.Freeze()
		w := &world{T: t, advance: server.Advance, expired: new(int)}
		w.store = newRedis(t, server, w.events())
		promise(w)
	})
}

func (w *world) events() slotstore.Events {
	return slotstore.Events{Expired: func(n int) { *w.expired += n }}
}

func newRedis(t testing.TB, server *redistest.Server, events slotstore.Events) *slotstore.Redis {
	t.Helper()
	return newRedisWith(t, server, lifetimes, events)
}

// newRedisWith returns once the self-tests, which take slots of their own, have ended in one way or the other.
func newRedisWith(t testing.TB, server *redistest.Server, lifetimes slotstore.Lifetimes, events slotstore.Events) *slotstore.Redis {
	t.Helper()
	tested := make(chan string, 100)
	events.SelfTest = func(role string, _ error) { tested <- role }
	store := slotstore.NewRedis(redisOptions(server), lifetimes, events)
	t.Cleanup(func() { store.Close() })
	for range slotstore.Roles {
		<-tested
	}
	return store
}

// redisOptions give every call the time that a busy machine may need; tests of budgets set their own.
func redisOptions(server *redistest.Server) slotstore.RedisOptions {
	return slotstore.RedisOptions{
		Mode: "standalone", Network: "unix", Addresses: []string{server.Socket}, Prefix: "streamcap",
		AcquireTimeout: 10 * time.Second, HeartbeatTimeout: 10 * time.Second, ReleaseTimeout: 10 * time.Second, AdminTimeout: 10 * time.Second,
	}
}

func id(user, request string) slotstore.ID { return slotstore.ID{User: user, Request: request} }

var attempts = func() func() string {
	var mu sync.Mutex
	n := 0
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return "attempt" + strconv.Itoa(n)
	}
}()

func (w *world) try(user, request string, limit int) slotstore.Decision {
	w.Helper()
	return w.tryAs(attempts(), user, request, limit)
}

func (w *world) tryAs(attempt, user, request string, limit int) slotstore.Decision {
	w.Helper()
	decision, err := w.store.Acquire(w.Context(), slotstore.Request{ID: id(user, request), Limit: limit, Attempt: attempt})
	if err != nil {
		w.Fatalf("acquire %s %s: %v", user, request, err)
	}
	return decision
}

// acquires wants an outcome and how many slots the user then holds.
func (w *world) acquires(user, request string, limit int, outcome slotstore.Outcome, used int) slotstore.Decision {
	w.Helper()
	decision := w.try(user, request, limit)
	if decision.Outcome != outcome || decision.Used != used {
		w.Fatalf("acquire %s %s at limit %d: outcome %d, used %d; want %d, %d", user, request, limit, decision.Outcome, decision.Used, outcome, used)
	}
	return decision
}

// extends wants a heartbeat to find the slot.
func (w *world) extends(user, request string, want bool) {
	w.Helper()
	beats, err := w.store.Heartbeat(w.Context(), id(user, request))
	if err != nil || (beats.Extended == 1) != want || len(beats.Gone)+beats.Extended != 1 {
		w.Fatalf("heartbeat %s %s: %+v, %v; want extended: %t", user, request, beats, err, want)
	}
}

// releases wants a release to find the slot.
func (w *world) releases(user, request string, want bool) {
	w.Helper()
	done, err := w.store.Release(w.Context(), id(user, request))
	if err != nil || (len(done.Released) == 1) != want || len(done.Released)+done.Absent != 1 {
		w.Fatalf("release %s %s: %+v, %v; want released: %t", user, request, done, err, want)
	}
}

func (w *world) undoes(attempt, user, request string, want bool) {
	w.Helper()
	undone, err := w.store.Undo(w.Context(), id(user, request), attempt)
	if err != nil || undone != want {
		w.Fatalf("undo %s of %s %s: %t, %v; want %t", attempt, user, request, undone, err, want)
	}
}

// holds wants these live slots, in any order.
func (w *world) holds(user string, want ...string) []slotstore.Slot {
	w.Helper()
	slots, err := w.store.Slots(w.Context(), user)
	if err != nil {
		w.Fatalf("slots of %s: %v", user, err)
	}
	var got []string
	for _, slot := range slots {
		got = append(got, slot.Request)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Fatalf("%s holds %q, want %q", user, got, want)
	}
	return slots
}

func TestLimitIsExact_A02(t *testing.T) {
	bothStores(t, func(w *world) {
		for _, limit := range []int{1, 2, 50} {
			user := fmt.Sprint("user", limit)
			for n := 1; n <= limit; n++ {
				w.acquires(user, fmt.Sprint("r", n), limit, slotstore.Granted, n)
			}
			w.acquires(user, "one-more", limit, slotstore.Denied, limit)
		}
	})
}

func TestDenialLeavesNothingBehind_A01(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "r1", 1, slotstore.Granted, 1)
		for n := 2; n <= 51; n++ {
			w.acquires("u1", fmt.Sprint("r", n), 1, slotstore.Denied, 1)
		}
		w.holds("u1", "r1")
		w.releases("u1", "r1", true)
		w.acquires("u1", "r52", 1, slotstore.Granted, 1)
		w.holds("u1", "r52")
	})
}

func TestDenialDoesNotExtend_A01(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "r1", 1, slotstore.Granted, 1)
		w.advance(initialTTL - 10*time.Second)
		denied := w.acquires("u1", "r2", 1, slotstore.Denied, 1)
		if denied.RetryAfter != 10*time.Second {
			t.Errorf("retry after %s, want 10s", denied.RetryAfter)
		}
		w.advance(11 * time.Second)
		w.acquires("u1", "r2", 1, slotstore.Granted, 1)
	})
}

func TestDenialSaysWhoHoldsAndUntilWhen(t *testing.T) {
	bothStores(t, func(w *world) {
		for n := range 25 {
			w.acquires("u1", fmt.Sprintf("r%02d", n), 25, slotstore.Granted, n+1)
			w.advance(time.Second)
		}
		w.extends("u1", "r00", true) // now the latest
		denied := w.acquires("u1", "r", 25, slotstore.Denied, 25)
		if len(denied.Holders) != 20 || denied.Holders[0] != "r01" || denied.Holders[19] != "r20" {
			w.Errorf("holders %q, want r01 to r20", denied.Holders)
		}
		if denied.RetryAfter != initialTTL-24*time.Second {
			w.Errorf("retry after %s, want 36s", denied.RetryAfter)
		}
	})
}

func TestParallelAcquiresNeverPassTheLimit_A03(t *testing.T) {
	bothStores(t, func(w *world) {
		var parallel sync.WaitGroup
		granted := make(chan string, 200)
		for n := range 200 {
			parallel.Go(func() {
				request := fmt.Sprint("r", n)
				if w.try("u1", request, 3).Outcome == slotstore.Granted {
					granted <- request
				}
			})
		}
		parallel.Wait()
		close(granted)
		var got []string
		for request := range granted {
			got = append(got, request)
		}
		if len(got) != 3 {
			w.Fatalf("%d granted, want 3", len(got))
		}
		w.holds("u1", got...)
	})
}

func TestAcquireAgainAtTheLimit_A04(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "r1", 1, slotstore.Granted, 1)
		w.advance(initialTTL - time.Second)
		w.acquires("u1", "r1", 1, slotstore.Renewed, 1)
		w.advance(initialTTL - time.Second) // the renewal has made it last
		w.acquires("u1", "r1", 0, slotstore.Renewed, 1)
		w.holds("u1", "r1")
	})
}

func TestDistinctIDsAreDistinctSlots_A07(t *testing.T) {
	bothStores(t, func(w *world) {
		var parallel sync.WaitGroup
		for n := range 50 {
			parallel.Go(func() { w.try("u1", fmt.Sprint("r", n), 50) })
		}
		parallel.Wait()
		w.acquires("u1", "r50", 50, slotstore.Denied, 50)
	})
}

func TestLimitsZeroUnlimitedAndLowered_A08(t *testing.T) {
	bothStores(t, func(w *world) {
		none := w.acquires("nobody", "r1", 0, slotstore.Denied, 0)
		if none.RetryAfter != 0 || len(none.Holders) != 0 {
			w.Errorf("limit 0 with no slot: %+v", none)
		}
		for n := range 100 {
			w.acquires("free", fmt.Sprint("r", n), -1, slotstore.Granted, n+1)
		}
		for n := range 4 {
			w.acquires("u1", fmt.Sprint("r", n), 5, slotstore.Granted, n+1)
		}
		w.acquires("u1", "new", 2, slotstore.Denied, 4) // lowered under live streams
		for n := range 4 {
			w.extends("u1", fmt.Sprint("r", n), true)
		}
		for n := range 3 {
			w.acquires("u1", "new", 2, slotstore.Denied, 4-n)
			w.releases("u1", fmt.Sprint("r", n), true)
		}
		w.acquires("u1", "new", 2, slotstore.Granted, 2)
	})
}

func TestHeartbeatNeverTakes_H01(t *testing.T) {
	bothStores(t, func(w *world) {
		w.extends("u1", "r1", false)
		w.acquires("u1", "r1", 1, slotstore.Granted, 1)
		w.acquires("u1", "other", 2, slotstore.Granted, 2)
		w.releases("u1", "r1", true)
		w.extends("u1", "r1", false)
		w.holds("u1", "other")
	})
}

func TestHeartbeatRacesRelease_H01(t *testing.T) {
	bothStores(t, func(w *world) {
		for n := range 1000 {
			request := fmt.Sprint("r", n)
			w.acquires("u1", request, 2, slotstore.Granted, 1)
			var race sync.WaitGroup
			race.Go(func() { _, _ = w.store.Heartbeat(w.Context(), id("u1", request)) })
			race.Go(func() { _, _ = w.store.Release(w.Context(), id("u1", request)) })
			race.Wait()
		}
		w.holds("u1")
	})
}

func TestHeartbeatExtendsAndNeverShortens(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "r1", 2, slotstore.Granted, 1)
		w.acquires("u1", "r2", 2, slotstore.Granted, 2)
		w.advance(initialTTL - time.Second)
		w.extends("u1", "r1", true)
		w.advance(2 * time.Second) // r2 has had no heartbeat
		w.holds("u1", "r1")
		w.acquires("u1", "r1", 2, slotstore.Renewed, 1) // for initialTTL, which is less than what is left
		slots := w.holds("u1", "r1")
		if slots[0].Remaining != slotTTL-2*time.Second {
			w.Errorf("a renewal left %s of %s", slots[0].Remaining, slotTTL-2*time.Second)
		}
		w.advance(slotTTL - 10*time.Second)
		w.holds("u1", "r1")
		w.advance(10 * time.Second)
		w.holds("u1")
		w.extends("u1", "r1", false)
	})
}

func TestSlotIsDeadAtItsExpiryPrunedOrNot_E04(t *testing.T) {
	bothStores(t, func(w *world) {
		for n := range 3 {
			w.acquires("u1", fmt.Sprint("r", n), 3, slotstore.Granted, n+1)
		}
		w.acquires("u1", "long", 4, slotstore.Granted, 4)
		w.advance(initialTTL - time.Second)
		w.extends("u1", "long", true)
		w.advance(2 * time.Second)
		w.holds("u1", "long")
		w.extends("u1", "r0", false)
		w.releases("u1", "r1", false)
		w.acquires("u1", "new", 2, slotstore.Granted, 2)
	})
}

func TestExpiredSlotsAreTold_R04(t *testing.T) {
	bothStores(t, func(w *world) {
		for n := range 3 {
			w.acquires("u1", fmt.Sprint("r", n), 4, slotstore.Granted, n+1)
		}
		w.acquires("u1", "long", 4, slotstore.Granted, 4)
		w.advance(initialTTL - time.Second)
		w.extends("u1", "long", true)
		w.advance(2 * time.Second)
		w.releases("u1", "r0", false) // dead, and removed by the release
		w.acquires("u1", "new", 4, slotstore.Granted, 2)
		if *w.expired != 3 {
			w.Errorf("told of %d expired slots, want 3", *w.expired)
		}
	})
}

func TestMoreDeadSlotsThanOnePruneStep(t *testing.T) {
	bothStores(t, func(w *world) {
		var parallel sync.WaitGroup
		for n := range 2500 {
			parallel.Go(func() { w.try("u1", fmt.Sprint("r", n), -1) })
		}
		parallel.Wait()
		w.advance(initialTTL - time.Second)
		w.acquires("u1", "long", -1, slotstore.Granted, 2501)
		w.advance(2 * time.Second)
		w.acquires("u1", "new", 2, slotstore.Granted, 2)
		if *w.expired != 2500 {
			w.Errorf("told of %d expired slots, want 2500", *w.expired)
		}
	})
}

func TestMaxAgeRemovesAtTheFirstHeartbeatPastIt_H05(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "old", 2, slotstore.Granted, 1)
		for range 9 {
			w.advance(time.Minute - time.Second)
			w.extends("u1", "old", true)
		}
		w.acquires("u1", "old", 2, slotstore.Renewed, 1) // a renewal does not make it younger
		w.acquires("u1", "young", 2, slotstore.Granted, 2)
		w.advance(70 * time.Second / 2)
		w.extends("u1", "young", true)
		w.advance(70 * time.Second / 2)
		beats, err := w.store.Heartbeat(w.Context(), id("u1", "old"), id("u1", "young"))
		if err != nil || beats.Extended != 1 || len(beats.Gone) != 1 || beats.Gone[0] != (slotstore.Gone{ID: id("u1", "old"), MaxAge: true}) {
			w.Fatalf("heartbeat past the maximum age: %+v, %v", beats, err)
		}
		w.holds("u1", "young")
		w.extends("u1", "old", false)
	})
}

func TestReleaseFreesAtOnceAndMayBeRepeated(t *testing.T) {
	bothStores(t, func(w *world) {
		w.acquires("u1", "r1", 1, slotstore.Granted, 1)
		w.releases("u1", "r1", true)
		w.releases("u1", "r1", false)
		w.acquires("u1", "r2", 1, slotstore.Granted, 1)
		w.releases("u1", "r1", false)
		w.holds("u1", "r2")
	})
}

func TestUsersNeverShare_S04(t *testing.T) {
	users := []string{
		"u1", "u2", "U1", "u1 ", "a/b", "a%2Fb", "{u1}", "}{", "u1}:slots", "a\nb", "\x00", "\xff", "\xfe", "é", "e\u0301",
		"%probe", "*", "u?", "[u]", "a:b", "a,b", "-", "\"", "\\",
	}
	bothStores(t, func(w *world) {
		for _, user := range users {
			w.acquires(user, "r1", 1, slotstore.Granted, 1)
		}
		w.releases("u1", "r1", true)
		for _, user := range users[1:] {
			w.holds(user, "r1")
			w.acquires(user, "r2", 1, slotstore.Denied, 1)
		}
	})
}

func TestUndoTakesBackOnlyWhatItsAttemptTook(t *testing.T) {
	bothStores(t, func(w *world) {
		w.tryAs("a1", "u1", "other", 9)
		w.tryAs("a2", "u1", "first", 9)
		w.undoes("a3", "u1", "first", false)
		w.undoes("a2", "u1", "first", true)
		w.undoes("a2", "u1", "first", false)

		w.tryAs("a4", "u1", "renewed", 9)
		w.tryAs("a5", "u1", "renewed", 9)
		w.undoes("a4", "u1", "renewed", false)
		w.undoes("a5", "u1", "renewed", false)

		w.tryAs("a6", "u1", "beaten", 9)
		w.extends("u1", "beaten", true)
		w.undoes("a6", "u1", "beaten", false)
		w.undoes("", "u1", "beaten", false)
		w.holds("u1", "other", "renewed", "beaten")
	})
}

func TestTheSameAttemptSentTwiceIsOneGrant(t *testing.T) {
	bothStores(t, func(w *world) {
		w.tryAs("a1", "u1", "r1", 1)
		if again := w.tryAs("a1", "u1", "r1", 1); again.Outcome != slotstore.Granted || again.Used != 1 {
			w.Errorf("the driver's repetition: %+v, want granted", again)
		}
		w.undoes("a1", "u1", "r1", true)
	})
}

func TestSlotsShowProvenanceAgeAndRemaining(t *testing.T) {
	bothStores(t, func(w *world) {
		from := slotstore.Provenance{IP: "192.0.2.7", URI: "/stream/a\tb", UserAgent: "curl/8 \"x\" \xff"}
		req := slotstore.Request{ID: id("u1", "r1"), Limit: 3, Attempt: attempts(), Provenance: from}
		if _, err := w.store.Acquire(w.Context(), req); err != nil {
			w.Fatal(err)
		}
		w.advance(20 * time.Second)
		w.extends("u1", "r1", true)
		slot := w.holds("u1", "r1")[0]
		if slot.Provenance != from || slot.Limit != 3 || slot.Remaining != slotTTL || slot.Age != 20*time.Second {
			w.Errorf("slot %+v", slot)
		}
	})
}

func TestBatchesOfManyUsersAndRepeatedIDs(t *testing.T) {
	bothStores(t, func(w *world) {
		var all []slotstore.ID
		for n := range 1200 {
			one := id(fmt.Sprint("user", n%400), fmt.Sprint("r", n))
			if n%2 == 0 {
				w.try(one.User, one.Request, -1)
			}
			all = append(all, one)
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		beats, err := w.store.Heartbeat(w.Context(), all...)
		if err != nil || beats.Extended != 600 || len(beats.Gone) != 600 {
			w.Fatalf("%d extended, %d gone, %v; want 600 each", beats.Extended, len(beats.Gone), err)
		}
		done, err := w.store.Release(w.Context(), append(all, all[:10]...)...)
		if err != nil || len(done.Released) != 600 || done.Absent != 610 {
			w.Fatalf("%d released, %d absent, %v; want 600 and 610", len(done.Released), done.Absent, err)
		}
	})
}

func TestClosedRedisStoreAnswersWithAnError(t *testing.T) {
	store := newRedis(t, redistest.Start(t), slotstore.Events{})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := store.Acquire(context.Background(), slotstore.Request{ID: id("u1", "r1"), Limit: 1})
	if slotstore.ReasonOf(err) != slotstore.Unavailable {
		t.Errorf("acquire on a closed store: %v", err)
	}
}

func TestUsersAndSampleShowLiveSlotsAlone_E04_M03(t *testing.T) {
	bothStores(t, func(w *world) {
		empty, ok, err := w.store.Sample(w.Context())
		if err != nil || !ok || empty != (slotstore.Sample{}) {
			w.Fatalf("an empty store: %+v, %t, %v", empty, ok, err)
		}
		w.advance(time.Minute) // its sample is over
		for n, slots := range []int{1, 2, 2, 3, 4, 7} {
			for slot := range slots {
				w.try(fmt.Sprintf("user/%d\xff", n), fmt.Sprint("r", slot), -1)
			}
		}
		w.try("dead", "r1", 1)
		w.advance(initialTTL - time.Second)
		for n, slots := range []int{1, 2, 2, 3, 4, 7} {
			for slot := range slots {
				w.extends(fmt.Sprintf("user/%d\xff", n), fmt.Sprint("r", slot), true)
			}
		}
		w.advance(time.Second)
		sample, ok, err := w.store.Sample(w.Context())
		want := slotstore.Sample{Slots: 19, Users: [4]int{1, 2, 1, 2}, Oldest: initialTTL}
		if err != nil || !ok || sample != want {
			w.Errorf("sample %+v, %t, %v; want %+v", sample, ok, err, want)
		}
		users, err := w.store.Users(w.Context(), 3)
		wantUsers := []slotstore.UserSlots{{User: "user/5\xff", Slots: 7}, {User: "user/4\xff", Slots: 4}, {User: "user/3\xff", Slots: 3}}
		if err != nil || users.Partial || !slices.Equal(users.Users, wantUsers) {
			w.Errorf("users %+v, %v", users, err)
		}
		w.advance(slotTTL)
		if users, err = w.store.Users(w.Context(), 0); err != nil || len(users.Users) != 0 {
			w.Errorf("users %+v, %v after all have expired", users, err)
		}
	})
}

func TestUsersAreTheHundredWithTheMost(t *testing.T) {
	bothStores(t, func(w *world) {
		for n := range 300 {
			for slot := range 1 + n%3 {
				w.try(fmt.Sprint("user", n), fmt.Sprint("r", slot), -1)
			}
		}
		users, err := w.store.Users(w.Context(), 0)
		if err != nil || len(users.Users) != 100 || users.Users[99].Slots != 3 {
			w.Errorf("%d users, the last %+v, %v", len(users.Users), users.Users[len(users.Users)-1], err)
		}
	})
}
