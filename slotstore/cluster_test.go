package slotstore_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// usersOf are names whose slots are kept in this part of a cluster.
func usersOf(n, first, last int) []string {
	var users []string
	for i := 0; len(users) < n; i++ {
		name := "user" + strconv.Itoa(i)
		if slot := redistest.Slot(name); slot >= first && slot <= last {
			users = append(users, name)
		}
	}
	return users
}

func TestCluster_D03(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 2, redistest.NodeOptions{})
	nodes := redistest.Addresses(cluster.Primaries)
	everybody := append(slices.Clone(cluster.Primaries), cluster.Replicas...)
	for _, node := range everybody {
		node.Do(clusterACL(t)...)
	}
	as := func(options slotstore.RedisOptions) slotstore.RedisOptions {
		options.Username, options.Password = "streamcap", "password"
		return options
	}
	a, b := patient(t, as(at("cluster", nodes...))), patient(t, as(at("cluster", nodes[2])))

	t.Run("two sidecars cap 100 users at two", func(t *testing.T) {
		var users sync.WaitGroup
		var granted [100]atomic.Int64
		for n := range granted {
			users.Go(func() {
				user := "u" + strconv.Itoa(n)
				var calls sync.WaitGroup
				for i, store := range []slotstore.Store{a.store, b.store, a.store, b.store} {
					calls.Go(func() {
						decision, err := store.Acquire(t.Context(), slotstore.Request{ID: id(user, "r"+strconv.Itoa(i)), Limit: 2, Attempt: attempts()})
						if err != nil {
							t.Errorf("%s: %v", user, err)
						}
						if decision.Outcome == slotstore.Granted {
							granted[n].Add(1)
						}
					})
				}
				calls.Wait()
			})
		}
		users.Wait()
		for n := range granted {
			if got := granted[n].Load(); got != 2 {
				t.Errorf("user %d holds %d slots, want 2", n, got)
			}
		}
		for _, node := range cluster.Primaries {
			if n := node.Client.DBSize(t.Context()).Val(); n < 20 {
				t.Errorf("a node keeps %d keys: the users are not spread", n)
			}
		}
		a.wellRoles()
		b.wellRoles()
		a.checks()
	})

	t.Run("its connections are named, and only primaries are asked", func(t *testing.T) {
		for _, node := range cluster.Primaries {
			if list := node.Client.ClientList(t.Context()).Val(); !strings.Contains(list, "name=streamcap-acquire ") {
				t.Errorf("%s: no connection of the acquire role in\n%s", node.Address(), list)
			}
		}
		for _, node := range cluster.Replicas {
			if list := node.Client.ClientList(t.Context()).Val(); strings.Contains(list, "cmd=eval") {
				t.Errorf("%s: a replica runs scripts\n%s", node.Address(), list)
			}
		}
	})

	t.Run("scripts that some nodes have forgotten_F06", func(t *testing.T) {
		var ids []slotstore.ID
		for n := range 100 {
			ids = append(ids, id("u"+strconv.Itoa(n), "r0"), id("u"+strconv.Itoa(n), "r1"), id("u"+strconv.Itoa(n), "r2"), id("u"+strconv.Itoa(n), "r3"))
		}
		for _, node := range cluster.Primaries[:2] {
			node.Do("SCRIPT", "FLUSH")
		}
		beats, err := a.store.Heartbeat(t.Context(), ids...)
		if err != nil || beats.Extended != 200 {
			t.Errorf("%d extended, %v", beats.Extended, err)
		}
		cluster.Primaries[2].Do("SCRIPT", "FLUSH")
		done, err := b.store.Release(t.Context(), ids...)
		if err != nil || len(done.Released) != 200 {
			t.Errorf("%d released, %v", len(done.Released), err)
		}
	})

	t.Run("a node of it asked in standalone mode", func(t *testing.T) {
		for _, node := range cluster.Primaries {
			f := open(t, at("standalone", node.Address()))
			want := []string{"acquire moved", "admin moved", "heartbeat moved", "release moved"}
			eventually(t, "every role says what is wrong", func() bool { return len(f.told()) >= len(want) })
			got := f.told()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: told %q", node.Address(), got)
			}
			failed := 0
			for _, probe := range f.redis.Check(t.Context()) {
				if slotstore.ReasonOf(probe.Err) == slotstore.Moved {
					failed++
				}
			}
			if failed == 0 {
				t.Errorf("%s: check finds nothing wrong", node.Address())
			}
			other := usersOf(1, 0, 5000)[0]
			if node == cluster.Primaries[0] {
				other = usersOf(1, 12000, 16383)[0]
			}
			_, err := f.store.Acquire(t.Context(), slotstore.Request{ID: id(other, "r1"), Limit: 1, Attempt: attempts()})
			if got := slotstore.ReasonOf(err); got != slotstore.Moved && got != slotstore.BreakerOpen {
				t.Errorf("reason %q of %v", got, err)
			}
		}
	})

	t.Run("a slot that moves under load", func(t *testing.T) { movesUnderLoad(t, cluster, a, b) })

	t.Run("the ACL line is enough_D04", func(*testing.T) { a.refusedNothing(everybody...) })

	t.Run("a primary is killed", func(t *testing.T) {
		f := open(t, at("cluster", nodes...))
		f.wellRoles()
		fails(t, f, cluster.Replicas[0], usersOf(3, 0, 5000), cluster.Primaries[0].Kill)
	})

	t.Run("a primary hangs", func(t *testing.T) {
		f := open(t, at("cluster", append(nodes[:1:1], nodes[2])...))
		f.wellRoles()
		hang := func() { cluster.Primaries[1].Signal(syscall.SIGSTOP) }
		fails(t, f, cluster.Replicas[1], usersOf(3, 5500, 10000), hang)
	})
}

// fails has one part of a cluster fail over while its users, and others, start streams.
func fails(t *testing.T, f *flavour, replica *redistest.Node, users []string, fail func()) {
	t.Helper()
	for _, user := range users {
		f.acquires(user, "r1", 1, slotstore.Granted, 1)
		f.acquires(user, "r2", 1, slotstore.Denied, 1)
	}
	if n := replica.Client.Do(t.Context(), "CLUSTER", "MYID"); n.Err() != nil {
		t.Fatal(n.Err())
	}
	stop, loaded := make(chan struct{}), make(chan struct{})
	var answered, late atomic.Int64
	go func() {
		defer close(loaded)
		var load sync.WaitGroup
		for _, user := range append(slices.Clone(users), "elsewhere", "u1", "u2") {
			load.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					start := time.Now()
					_, _ = f.store.Acquire(t.Context(), slotstore.Request{ID: id(user, "load"), Limit: 2, Attempt: attempts()})
					answered.Add(1)
					if time.Since(start) > 150*time.Millisecond {
						late.Add(1)
					}
					time.Sleep(5 * time.Millisecond) // the pace of the load
				}
			})
		}
		load.Wait()
	}()
	fail()
	eventually(t, "the replica is promoted", func() bool { return replica.Info("replication", "role:master") })
	promoted := time.Now()
	for _, user := range users {
		f.answersWithin(2*time.Second, user, promoted)
	}
	close(stop)
	<-loaded
	for _, user := range users {
		f.acquires(user, "r2", 1, slotstore.Denied, len(f.slotsOf(user)))
	}
	if late.Load() > answered.Load()/50 { // the machine may be busy
		t.Errorf("%d of %d waited longer than their budget of 100ms", late.Load(), answered.Load())
	}
	f.soonChecks()
}

func (f *flavour) slotsOf(user string) []slotstore.Slot {
	f.Helper()
	var slots []slotstore.Slot
	eventually(f.T, "the list is answered", func() (ok bool) { // the role may have been idle while a primary changed
		var err error
		slots, err = f.store.Slots(f.Context(), user)
		return err == nil
	})
	return slots
}

// movesUnderLoad moves one slot with 20 users, key by key, while both stores start and end streams of theirs.
func movesUnderLoad(t *testing.T, cluster *redistest.Cluster, a, b *flavour) {
	t.Helper()
	source, target := cluster.Primaries[2], cluster.Primaries[0]
	slot := redistest.Slot(usersOf(1, 12000, 16000)[0])
	users := usersOf(20, slot, slot)
	var held [20]atomic.Int64
	var errs, calls atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for n, user := range users {
		(&world{T: t, store: a.store}).acquires(user, "kept", 2, slotstore.Granted, 1)
		for worker, store := range []slotstore.Store{a.store, b.store, a.store} {
			load.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					calls.Add(1)
					slot := id(user, fmt.Sprint(worker, "-", i))
					decision, err := store.Acquire(t.Context(), slotstore.Request{ID: slot, Limit: 2, Attempt: attempts()})
					switch {
					case err != nil:
						errs.Add(1)
						if reason := slotstore.ReasonOf(err); reason != slotstore.Unavailable && reason != slotstore.BreakerOpen {
							t.Errorf("%s: %s: %v", user, reason, err)
						}
						_, _ = store.Release(t.Context(), slot)
					case decision.Outcome == slotstore.Granted:
						if now := held[n].Add(1); now > 1 {
							t.Errorf("%s holds %d slots beside the one that she keeps", user, now)
						}
						time.Sleep(time.Millisecond) // the stream
						held[n].Add(-1)
						for {
							if _, err := store.Release(t.Context(), slot); err == nil {
								break
							}
						}
					}
				}
			})
		}
	}
	number := strconv.Itoa(slot)
	target.Do("CLUSTER", "SETSLOT", number, "IMPORTING", source.ID())
	source.Do("CLUSTER", "SETSLOT", number, "MIGRATING", target.ID())
	moved := 0
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		keys, _ := source.Do("CLUSTER", "GETKEYSINSLOT", number, "1").([]any)
		if len(keys) == 0 {
			break
		}
		// One key at a time: a user's other one follows later.
		source.Do("MIGRATE", target.Host, target.Port, keys[0].(string), "0", "1000")
		moved++
	}
	for _, node := range []*redistest.Node{target, source, cluster.Primaries[1]} {
		node.Do("CLUSTER", "SETSLOT", number, "NODE", target.ID())
	}
	settled := time.Now()
	for {
		steady, after := errs.Load(), calls.Load()
		eventually(t, "the load goes on", func() bool { return calls.Load() > after+500 })
		if errs.Load() == steady {
			break
		}
		if time.Since(settled) > 2*time.Second {
			t.Error("there are errors that stay")
			break
		}
	}
	close(stop)
	load.Wait()
	t.Logf("%d keys moved, %d of %d calls failed", moved, errs.Load(), calls.Load())
	if moved < 2*len(users) {
		t.Errorf("%d keys moved of %d users", moved, len(users))
	}
	for _, user := range users {
		for _, slot := range a.slotsOf(user) { // of acquires that failed and took a slot all the same
			if slot.Request != "kept" {
				_, _ = a.store.Release(t.Context(), id(user, slot.Request))
			}
		}
		a, b := &world{T: t, store: a.store}, &world{T: t, store: b.store}
		b.acquires(user, "2", 2, slotstore.Granted, 2)
		a.acquires(user, "3", 2, slotstore.Denied, 2)
		a.holds(user, "kept", "2")
		if n := target.Client.ZCard(t.Context(), "streamcap:{"+user+"}:slots").Val(); n != 2 {
			t.Errorf("%s: the new node keeps %d slots", user, n)
		}
	}
}
