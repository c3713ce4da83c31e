package slotstore_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// under are the options for these sentinels.
func under(sentinels *redistest.Sentinels, password string) slotstore.RedisOptions {
	options := at("sentinel", redistest.Addresses(sentinels.Sentinels)...)
	options.SentinelMaster, options.Password = "mymaster", password
	return options
}

func TestSentinels_D10(t *testing.T) {
	t.Parallel()
	sentinels := redistest.StartSentinels(t, redistest.NodeOptions{Password: "secret"}, "")

	t.Run("the password is the data nodes'", func(t *testing.T) {
		f := patient(t, under(sentinels, "secret"))
		f.works()
		if list := sentinels.Primary.Client.ClientList(t.Context()).Val(); !strings.Contains(list, "name=streamcap-acquire ") {
			t.Errorf("no connection of the acquire role in\n%s", list)
		}
	})

	t.Run("a primary that no sentinel knows", func(t *testing.T) {
		options := under(sentinels, "secret")
		options.SentinelMaster = "other"
		f := patient(t, options)
		acquireFails(t, f.store, slotstore.Unavailable)
		_, err := f.store.Acquire(t.Context(), slotstore.Request{ID: id("u1", "r1"), Limit: 1, Attempt: attempts()})
		if err == nil || !strings.Contains(err.Error(), `the sentinels know no primary called "other"`) {
			t.Errorf("the error does not name the cause: %v", err)
		}
	})

	t.Run("all sentinels are down at the start", func(t *testing.T) {
		for _, sentinel := range sentinels.Sentinels {
			sentinel.Kill()
		}
		f := open(t, under(sentinels, "secret"))
		eventually(t, "every role says so", func() bool { return len(f.told()) == 4 })
		for _, told := range f.told() {
			if !strings.HasSuffix(told, " unavailable") {
				t.Errorf("told %q", told)
			}
		}
		acquireFails(t, f.store, slotstore.Unavailable)
		f.opens("u2")
		sentinels.Sentinels[1].Run()
		f.answersWithin(time.Second, "u2", time.Now())
		for _, i := range []int{0, 2} {
			sentinels.Sentinels[i].Run()
		}
	})

	t.Run("the primary is killed", func(t *testing.T) {
		sentinels.Wait(t)
		f := open(t, under(sentinels, "secret"))
		f.wellRoles()
		f.failsOver(sentinels, sentinels.Primary.Kill)
		f.soonChecks()
	})
}

func TestSentinelHangsWithThePrimary_D10(t *testing.T) {
	t.Parallel()
	sentinels := redistest.StartSentinels(t, redistest.NodeOptions{Password: "secret"}, "secret") // sentinels may want it, too
	for _, node := range []*redistest.Node{sentinels.Primary, sentinels.Replica} {
		node.Do(readmesACL(t)...)
	}
	for _, sentinel := range sentinels.Sentinels {
		sentinel.Do(sentinelACL...)
	}
	options := under(sentinels, "password")
	options.Username = "streamcap"
	f := open(t, options)
	f.wellRoles()
	f.refusedNothing(append(sentinels.Sentinels, sentinels.Primary)...)
	var asked *redistest.Node
	for _, sentinel := range sentinels.Sentinels {
		if strings.Contains(sentinel.Client.ClientList(t.Context()).Val(), "name=streamcap-acquire ") {
			asked = sentinel
		}
	}
	if asked == nil {
		t.Fatal("no sentinel is asked by the acquire role")
	}
	f.failsOver(sentinels, func() { // one host had both
		asked.Signal(syscall.SIGSTOP)
		sentinels.Primary.Signal(syscall.SIGSTOP)
	})
}

// failsOver wants enforcement back soon after a sentinel names the new primary.
func (f *flavour) failsOver(sentinels *redistest.Sentinels, fail func()) {
	f.Helper()
	f.acquires("u3", "r1", 1, slotstore.Granted, 1)
	replicated := func() bool { return sentinels.Replica.Client.Exists(f.Context(), "streamcap:{u3}:slots").Val() == 1 }
	eventually(f.T, "the replica has the slot", replicated)
	fail()
	eventually(f.T, "a sentinel names the new primary", func() bool { // users go on meanwhile
		_, _ = f.store.Acquire(f.Context(), slotstore.Request{ID: id("u4", "r1"), Limit: 1, Attempt: attempts()})
		return sentinels.Names(sentinels.Replica)
	})
	f.answersWithin(2*time.Second, "u4", time.Now())
	f.acquires("u3", "r2", 1, slotstore.Denied, 1)
}
