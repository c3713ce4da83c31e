package slotstore_test

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// executions are how many scripts the server ran so far.
func executions(t *testing.T, client *redis.Client) int {
	t.Helper()
	stats := client.Info(t.Context(), "commandstats").Val()
	total := 0
	for _, calls := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		n, _ := strconv.Atoi(calls[1])
		total += n
	}
	return total
}

func TestHeartbeatsOfManyShareExecutions(t *testing.T) {
	server := redistest.Start(t)
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	const users = 1000
	name := func(n int) string { return "user" + strconv.Itoa(n) }
	var ids []slotstore.ID
	for n := range users {
		w.acquires(name(n), "r1", 1, slotstore.Granted, 1)
		ids = append(ids, id(name(n), "r1"))
	}
	server.Client.Set(t.Context(), "streamcap:{user7}:slots", "somebody else's", 0)

	before := executions(t, server.Client)
	beats, err := w.store.Heartbeat(t.Context(), ids...)
	if slotstore.ReasonOf(err) != slotstore.WrongType || beats.Extended != users-1 || beats.Unrecorded != 1 {
		t.Errorf("heartbeat of %d users, one with a foreign key: %+v, %v", users, beats, err)
	}
	if got := executions(t, server.Client) - before; got > users/10 {
		t.Errorf("a batch of %d users took %d executions", users, got)
	}

	before = executions(t, server.Client)
	var singles sync.WaitGroup
	for n := 10; n < users; n++ {
		singles.Go(func() { w.extends(name(n), "r1", true) })
	}
	singles.Wait()
	if got := executions(t, server.Client) - before; got > users/4 {
		t.Errorf("%d single heartbeats at once took %d executions", users, got)
	}
}

func TestOneUsersErrorIsNobodyElses(t *testing.T) {
	server := redistest.Start(t)
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	server.Client.Set(t.Context(), "streamcap:{odd}:slots", "somebody else's", 0)
	var calls sync.WaitGroup
	for n := range 200 {
		calls.Go(func() {
			if n%3 == 0 {
				_, err := w.store.Acquire(t.Context(), slotstore.Request{ID: id("odd", "r1"), Limit: 1, Attempt: attempts()})
				if slotstore.ReasonOf(err) != slotstore.WrongType {
					t.Errorf("acquire on a foreign key: %v", err)
				}
				return
			}
			user := fmt.Sprint("even", n)
			w.acquires(user, "r1", 1, slotstore.Granted, 1)
			w.acquires(user, "r2", 1, slotstore.Denied, 1)
			w.releases(user, "r1", true)
		})
	}
	calls.Wait()
}

// Some sell a cluster behind one address that takes any key, but not the keys of two slots at once.
func TestRedisThatHidesAClusterIsAskedUserByUser(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 1, 0, redistest.NodeOptions{})
	f := patient(t, at("standalone", redistest.Addresses(cluster.Primaries)...))
	for n := range 60 {
		f.acquires(fmt.Sprint("user", n), "r1", 1, slotstore.Granted, 1)
	}
	var ids []slotstore.ID
	for n := range 60 {
		ids = append(ids, id(fmt.Sprint("user", n), "r1"))
	}
	beats, err := f.store.Heartbeat(t.Context(), ids...)
	if err != nil || beats.Extended != len(ids) {
		t.Errorf("heartbeat of a batch: %+v, %v", beats, err)
	}
	releases, err := f.store.Release(t.Context(), ids...)
	if err != nil || len(releases.Released) != len(ids) {
		t.Errorf("release of a batch: %+v, %v", releases, err)
	}
	f.wellRoles()
}
