package slotstore_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

func keysIn(t *testing.T, server *redistest.Server) []string {
	t.Helper()
	var keys []string
	scan := server.Client.Scan(t.Context(), 0, "*", 1000).Iterator()
	for scan.Next(t.Context()) {
		keys = append(keys, scan.Val())
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

func TestRedisKeysAreTheContracts(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	for user, escaped := range map[string]string{
		"u1": "u1", "A.b_c@d-e": "A.b_c@d-e", "a/b": "a%2Fb", "a%2Fb": "a%252Fb", "{x}": "%7Bx%7D", "a b": "a%20b", "\xff": "%FF", "é": "%C3%A9", "a:*": "a%3A%2A",
	} {
		w.acquires(user, "r1", 1, slotstore.Granted, 1)
		want := []string{"streamcap:{" + escaped + "}:details", "streamcap:{" + escaped + "}:slots"}
		if got := keysIn(t, server); !slices.Equal(got, want) {
			t.Errorf("user %q has keys %q, want %q", user, got, want)
		}
		w.releases(user, "r1", true)
		if got := keysIn(t, server); len(got) != 0 {
			t.Errorf("after the release of its last slot %q has keys %q", user, got)
		}
	}
}

func TestRedisSlotIsAScoreInMsOfRedissClock(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	w.acquires("u1", "r1", 1, slotstore.Granted, 1)
	now, err := server.Client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	score, err := server.Client.ZScore(t.Context(), "streamcap:{u1}:slots", "r1").Result()
	if want := now.UnixMilli() + initialTTL.Milliseconds(); err != nil || int64(score) != want {
		t.Errorf("score %.0f, %v; want %d", score, err, want)
	}
}

func TestRedisKeysGoByThemselves_E02(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	for n := range 1000 {
		w.acquires(fmt.Sprint("user", n), "r1", 1, slotstore.Granted, 1)
	}
	w.extends("user0", "r1", true)
	server.Advance(initialTTL + slotTTL - time.Second)
	if got := len(keysIn(t, server)); got != 2000 {
		t.Errorf("%d keys within a slot's lifetime of the last expiry, want 2000", got)
	}
	server.Advance(2 * time.Second)
	want := []string{"streamcap:{user0}:details", "streamcap:{user0}:slots"}
	if got := keysIn(t, server); !slices.Equal(got, want) {
		t.Errorf("keys %q, want those of the user with the heartbeat", got)
	}
	server.Advance(slotTTL)
	if got := keysIn(t, server); len(got) != 0 {
		t.Errorf("keys %q after all expired", got)
	}
}

func TestRedisKeyExpiryNeverShrinks(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	w.acquires("u1", "long", 3, slotstore.Granted, 1)
	w.extends("u1", "long", true)
	w.acquires("u1", "short", 3, slotstore.Granted, 2) // initialTTL alone would be less
	for _, key := range []string{"streamcap:{u1}:slots", "streamcap:{u1}:details"} {
		if ttl := server.Client.PTTL(t.Context(), key).Val(); ttl != 2*slotTTL {
			t.Errorf("%s expires in %s, want the last slot's %s and %s more", key, ttl, slotTTL, slotTTL)
		}
	}
}

func TestTwoSidecarsEnforceOneCap_A13(t *testing.T) {
	server := redistest.Start(t)
	a := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	b := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	a.acquires("u1", "r1", 2, slotstore.Granted, 1)
	b.acquires("u1", "r2", 2, slotstore.Granted, 2)
	a.acquires("u1", "r3", 2, slotstore.Denied, 2)
	restarted := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	restarted.acquires("u1", "r3", 2, slotstore.Denied, 2)
	b.acquires("u1", "r1", 2, slotstore.Renewed, 2)
	restarted.releases("u1", "r2", true)
}

func TestTwoPrefixesOnOneRedis_D11(t *testing.T) {
	server := redistest.Start(t)
	a := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	options := redisOptions(server)
	options.Prefix = "other"
	store := slotstore.NewRedis(options, lifetimes, slotstore.Events{})
	t.Cleanup(func() { store.Close() })
	b := &world{T: t, store: store}
	a.acquires("u1", "r1", 1, slotstore.Granted, 1)
	b.acquires("u1", "r1", 1, slotstore.Granted, 1)
	a.releases("u1", "r1", true)
	b.holds("u1", "r1")
}

func TestRedissClockIsWrong_E01(t *testing.T) {
	for _, wrong := range []time.Duration{150 * time.Second, -150 * time.Second} {
		t.Run(wrong.String(), func(t *testing.T) {
			server := redistest.Start(t)
			server.Freeze()
			server.Advance(wrong)
			lives := lifetimes
			lives.Initial = slotTTL
			w := &world{T: t, store: newRedisWith(t, server, lives, slotstore.Events{})}
			w.acquires("u1", "r1", 1, slotstore.Granted, 1)
			if denied := w.acquires("u1", "r2", 1, slotstore.Denied, 1); denied.RetryAfter != slotTTL {
				t.Errorf("retry after %s, want %s", denied.RetryAfter, slotTTL)
			}
			w.acquires("u1", "long", 2, slotstore.Granted, 2)
			server.Advance(slotTTL - time.Millisecond)
			w.extends("u1", "long", true)
			w.holds("u1", "r1", "long")
			server.Advance(time.Millisecond)
			w.holds("u1", "long")
			w.extends("u1", "r1", false)
		})
	}
}

func TestRedisLosesItsData_E06(t *testing.T) {
	server := redistest.Start(t)
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	for n := range 5 {
		w.acquires("u1", fmt.Sprint("r", n), 5, slotstore.Granted, n+1)
	}
	server.Client.Del(t.Context(), "streamcap:{u1}:slots")
	for n := range 5 {
		w.extends("u1", fmt.Sprint("r", n), false)
	}
	w.acquires("u1", "new", 5, slotstore.Granted, 1)
	if left := server.Client.HLen(t.Context(), "streamcap:{u1}:details").Val(); left != 1 {
		t.Errorf("%d details for one slot: those of an evicted set stay", left)
	}

	// The other half can be lost as well: the slot counts, and lives, without its provenance.
	server.Client.Del(t.Context(), "streamcap:{u1}:details")
	w.extends("u1", "new", true)
	w.undoes(attempts(), "u1", "new", false)
	w.holds("u1", "new")
	w.acquires("u1", "new", 5, slotstore.Renewed, 1)
	w.releases("u1", "new", true)
}

func TestScriptsAreForgotten_F06(t *testing.T) {
	server := redistest.Start(t)
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	w.acquires("u1", "r1", 1, slotstore.Granted, 1)
	flush := func() { server.Client.ScriptFlush(t.Context()) }
	flush()
	w.acquires("u1", "r2", 1, slotstore.Denied, 1)
	flush()
	w.extends("u1", "r1", true)
	flush()
	w.holds("u1", "r1")
	flush()
	w.releases("u1", "r1", true)

	looping, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looping)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
				flush()
			}
		}
	}()
	for n := range 500 {
		w.acquires("u1", "looped", 1, slotstore.Granted, 1)
		w.acquires("u1", fmt.Sprint("other", n), 1, slotstore.Denied, 1)
		w.extends("u1", "looped", true)
		w.releases("u1", "looped", true)
	}
	close(stop)
	<-looping
}

// acquireFails wants an acquire of u1 to fail for this reason.
func acquireFails(t *testing.T, store slotstore.Store, want slotstore.Reason) {
	t.Helper()
	_, err := store.Acquire(t.Context(), slotstore.Request{ID: id("u1", "r1"), Limit: 2, Attempt: attempts()})
	if got := slotstore.ReasonOf(err); got != want {
		t.Errorf("reason %q of %v, want %q", got, err, want)
	}
}

func TestWhyRedisCouldNotAnswer_F13(t *testing.T) {
	t.Run("wrongtype is one user's affair", func(t *testing.T) {
		server := redistest.Start(t)
		w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
		server.Client.Set(t.Context(), "streamcap:{u1}:slots", "x", 0)
		acquireFails(t, w.store, slotstore.WrongType)
		w.acquires("u2", "r1", 1, slotstore.Granted, 1)
		beats, err := w.store.Heartbeat(t.Context(), id("u1", "r1"), id("u2", "r1"))
		if slotstore.ReasonOf(err) != slotstore.WrongType || beats.Extended != 1 || beats.Unrecorded != 1 {
			t.Errorf("heartbeat of both: %+v, %v", beats, err)
		}
	})
	t.Run("wrongtype of the details changes nothing", func(t *testing.T) {
		server := redistest.Start(t)
		abandoned := 0
		w := &world{T: t, store: newRedis(t, server, slotstore.Events{Abandoned: func(slotstore.ID, string) { abandoned++ }})}
		w.acquires("u1", "r0", 2, slotstore.Granted, 1)
		for _, slots := range []int64{1, 0} { // among others, and alone
			server.Client.Set(t.Context(), "streamcap:{u1}:details", "somebody else's", 0)
			acquireFails(t, w.store, slotstore.WrongType)
			if got := server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val(); got != slots {
				t.Errorf("%d slots, want %d", got, slots)
			}
			if got := server.Client.Get(t.Context(), "streamcap:{u1}:details").Val(); got != "somebody else's" {
				t.Errorf("the foreign key holds %q", got)
			}
			server.Client.Del(t.Context(), "streamcap:{u1}:slots")
		}
		if abandoned != 0 {
			t.Errorf("%d acquires are to be undone, and none took a slot", abandoned)
		}
	})
	t.Run("oom", func(t *testing.T) {
		server := redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.OOM)
	})
	t.Run("readonly", func(t *testing.T) {
		server := redistest.Start(t, "--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "yes")
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.ReadOnly)
	})
	t.Run("noreplicas", func(t *testing.T) {
		server := redistest.Start(t, "--min-replicas-to-write", "3")
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.ReadOnly)
	})
	t.Run("masterdown", func(t *testing.T) {
		server := redistest.Start(t, "--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no")
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.Unavailable)
	})
	t.Run("noauth", func(t *testing.T) {
		server := redistest.Start(t, "--requirepass", "secret")
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.NoPerm)
	})
	t.Run("wrong password", func(t *testing.T) {
		server := redistest.Start(t)
		options := redisOptions(server)
		options.Password = "wrong"
		server.Client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret")
		store := slotstore.NewRedis(options, lifetimes, slotstore.Events{})
		t.Cleanup(func() { store.Close() })
		acquireFails(t, store, slotstore.NoPerm)
	})
	for name, rule := range map[string]string{"a command of the script": "-zadd", "scripts": "-@scripting", "the key": "resetkeys"} {
		t.Run("acl without "+name, func(t *testing.T) {
			server := redistest.Start(t)
			server.Client.Do(t.Context(), "ACL", "SETUSER", "default", rule)
			acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.NoPerm)
		})
	}
	t.Run("a cluster node that serves no slot", func(t *testing.T) {
		server := redistest.Start(t, "--cluster-enabled", "yes", "--port", freePort(t))
		acquireFails(t, newRedis(t, server, slotstore.Events{}), slotstore.Unavailable)
	})
	t.Run("refused", func(t *testing.T) {
		server := redistest.Start(t)
		store := newRedis(t, server, slotstore.Events{})
		server.Kill()
		acquireFails(t, store, slotstore.Unavailable)
		server.Restart()
		(&world{T: t, store: store}).acquires("u1", "r1", 1, slotstore.Granted, 1)
	})
	t.Run("maxclients", func(t *testing.T) {
		port := freePort(t)
		server := redistest.Start(t, "--maxclients", "1", "--port", port)
		server.Client.Ping(t.Context()) // the one client
		acquireFails(t, tcpStore(t, "127.0.0.1:"+port), slotstore.Overload)
	})
	t.Run("something else listens there", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					_, _ = conn.Read(make([]byte, 512))
					_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
				}()
			}
		}()
		acquireFails(t, tcpStore(t, listener.Addr().String()), slotstore.Internal)
	})
}

func tcpStore(t *testing.T, address string) *slotstore.Redis {
	t.Helper()
	options := redisOptions(&redistest.Server{Socket: address})
	options.Network = "tcp"
	store := slotstore.NewRedis(options, lifetimes, slotstore.Events{})
	t.Cleanup(func() { store.Close() })
	return store
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// impatient is a store whose callers wait no longer than budget, and what it tells of acquires that were answered too early.
func impatient(t *testing.T, server *redistest.Server, budget time.Duration) (*slotstore.Redis, <-chan slotstore.ID) {
	t.Helper()
	abandoned := make(chan slotstore.ID, 1000)
	options := redisOptions(server)
	options.AcquireTimeout = budget
	store := slotstore.NewRedis(options, lifetimes, slotstore.Events{
		Abandoned: func(id slotstore.ID, _ string) { abandoned <- id },
	})
	t.Cleanup(func() { store.Close() })
	return store, abandoned
}

func TestHungRedisCostsTheBudgetAndNoMore_F02(t *testing.T) {
	server := redistest.Start(t)
	store, abandoned := impatient(t, server, 100*time.Millisecond)
	w := &world{T: t, store: store}
	w.acquires("u0", "warm", 1, slotstore.Granted, 1)
	server.Signal(syscall.SIGSTOP)
	start := time.Now()
	acquireFails(t, store, slotstore.Timeout)
	if took := time.Since(start); took < 100*time.Millisecond || took > time.Second {
		t.Errorf("the caller waited %s for a budget of 100ms", took)
	}
	server.Signal(syscall.SIGCONT)

	// The call went on without her and took a slot for nobody; the store tells, and keeps what it can't know.
	select {
	case got := <-abandoned:
		if got != id("u1", "r1") {
			t.Errorf("abandoned %v", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody was told of a slot that was taken too late")
	}
	if health := store.Health(); health[0].Role != slotstore.RoleAcquire || !strings.HasPrefix(health[0].LastError, "timeout: ") && health[0].LastError != "" {
		t.Errorf("health %+v", health)
	}
}

func TestCheckLeavesNothingBehind(t *testing.T) {
	server := redistest.Start(t)
	store := newRedis(t, server, slotstore.Events{})
	for _, probe := range store.Check(t.Context()) {
		if probe.Err != nil {
			t.Errorf("%s: %v", probe.Role, probe.Err)
		}
	}
	eventually(t, "no key is left", func() bool { return len(keysIn(t, server)) == 0 }) // one of them lasts a millisecond
	server.Client.Do(t.Context(), "ACL", "SETUSER", "default", "-zadd")
	var failed []string
	for _, probe := range store.Check(t.Context()) {
		if probe.Err != nil {
			failed = append(failed, probe.Role+" "+string(slotstore.ReasonOf(probe.Err)))
		}
	}
	if want := []string{"acquire noperm", "heartbeat noperm"}; !slices.Equal(failed, want) { // a heartbeat writes like an acquire
		t.Errorf("failed %q, want %q", failed, want)
	}
}

// Each command that the README says a role needs is missed at once, and not by the first user whom it concerns.
func TestCheckMissesEachCommand_F18(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Client.ZAdd(t.Context(), "streamcap:{%probe}:slots", redis.Z{Score: 1e15, Member: "another's"}) // as others test meanwhile
	needs := map[string]string{
		slotstore.RoleAcquire:   "zcard zrangebyscore zrem hdel zscore hget zrange hlen del hset zadd pttl pexpire",
		slotstore.RoleHeartbeat: "zscore hget zrem hdel zadd hset pttl pexpire",
		slotstore.RoleRelease:   "zscore hget zrem hdel",
		slotstore.RoleAdmin:     "zrangebyscore hget zcount scan get set",
	}
	for command := range strings.FieldsSeq("eval evalsha time zadd zrem zcard zscore zrange zrangebyscore hset hget hdel hlen del pttl pexpire zcount scan get set") {
		server.Client.Do(t.Context(), "ACL", "SETUSER", "default", "+@all", "-"+command)
		store := newRedis(t, server, slotstore.Events{})
		for _, probe := range store.Check(t.Context()) {
			all := slices.Contains([]string{"eval", "evalsha", "time"}, command)
			want := slotstore.Reason("")
			if all || slices.Contains(strings.Fields(needs[probe.Role]), command) {
				want = slotstore.NoPerm
			}
			if got := slotstore.ReasonOf(probe.Err); got != want && want != "" {
				t.Errorf("without %s %s says %q: %v", command, probe.Role, got, probe.Err)
			}
		}
	}
}

func TestTheReadmesACLLineIsEnough_D04(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER streamcap .*$`).FindString(string(readme))
	var args []any
	for word := range strings.FieldsSeq(line) {
		args = append(args, word)
	}
	server := redistest.Start(t)
	server.Freeze()
	if err := server.Client.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	options := redisOptions(server)
	options.Username, options.Password, options.DB = "streamcap", "password", 1
	expired := 0
	store := slotstore.NewRedis(options, lifetimes, slotstore.Events{Expired: func(n int) { expired += n }})
	t.Cleanup(func() { store.Close() })
	w := &world{T: t, store: store}
	for _, probe := range store.Check(t.Context()) {
		if probe.Err != nil {
			t.Errorf("%s: %v", probe.Role, probe.Err)
		}
	}
	w.acquires("u1", "r1", 2, slotstore.Granted, 1)
	w.acquires("u1", "r2", 2, slotstore.Granted, 2)
	w.acquires("u1", "r2", 2, slotstore.Renewed, 2)
	w.acquires("u1", "r3", 2, slotstore.Denied, 2)
	w.extends("u1", "r1", true)
	w.holds("u1", "r1", "r2")
	w.tryAs("undone", "u1", "r4", 3)
	w.undoes("undone", "u1", "r4", true)
	w.releases("u1", "r2", true)
	server.Advance(slotTTL)
	w.acquires("u1", "r1", 1, slotstore.Granted, 1)
	server.Client.Do(t.Context(), "SELECT", 1)
	server.Client.Del(t.Context(), "streamcap:{u1}:slots")
	w.acquires("u1", "r1", 1, slotstore.Granted, 1)
	server.Advance(maxAge)
	if refused := server.Client.Do(t.Context(), "ACL", "LOG").Val(); fmt.Sprint(refused) != "[]" {
		t.Errorf("Redis refused %v", refused)
	}
	if expired != 1 {
		t.Errorf("%d expired", expired)
	}
}

func TestEachRoleHasANamedConnection(t *testing.T) {
	server := redistest.Start(t)
	store := newRedis(t, server, slotstore.Events{})
	store.Check(t.Context())
	list := server.Client.ClientList(t.Context()).Val()
	for _, role := range slotstore.Roles {
		if !strings.Contains(list, "name=streamcap-"+role+" ") {
			t.Errorf("no connection is called streamcap-%s in\n%s", role, list)
		}
	}
}

func TestErrorsWrapTheirCause(t *testing.T) {
	store := slotstore.NewRedis(redisOptions(&redistest.Server{Socket: "/nowhere/redis.sock"}), lifetimes, slotstore.Events{})
	t.Cleanup(func() { store.Close() })
	_, err := store.Slots(t.Context(), "u1")
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "slotstore: list: ") {
		t.Errorf("%v", err)
	}
	if redis.HasErrorPrefix(err, "ERR") || slotstore.ReasonOf(err) != slotstore.Unavailable {
		t.Errorf("reason %q", slotstore.ReasonOf(err))
	}
}

func TestOneSampleServesAllSidecars(t *testing.T) {
	server := redistest.Start(t)
	server.Freeze()
	a := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	b := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	sample := func(w *world) (slotstore.Sample, bool) {
		t.Helper()
		sample, ok, err := w.store.Sample(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return sample, ok
	}
	a.acquires("u1", "r1", 2, slotstore.Granted, 1)
	if got, ok := sample(a); !ok || got.Slots != 1 {
		t.Fatalf("sample %+v, %t", got, ok)
	}
	a.acquires("u1", "r2", 2, slotstore.Granted, 2)
	if got, ok := sample(b); !ok || got.Slots != 1 {
		t.Errorf("within a minute: %+v, %t; want the same sample", got, ok)
	}
	server.Advance(time.Minute + time.Millisecond)
	server.Client.SetNX(t.Context(), "streamcap:sample", "claimed", 5*time.Second) // by a sidecar that is busy with it
	if got, ok := sample(b); ok {
		t.Errorf("while another makes it: %+v", got)
	}
	server.Advance(5*time.Second + time.Millisecond) // and has died
	a.extends("u1", "r1", false)
	a.acquires("u1", "r3", 2, slotstore.Granted, 1)
	if got, ok := sample(b); !ok || got.Slots != 1 || got.Oldest != 0 {
		t.Errorf("the next: %+v, %t", got, ok)
	}
	if ttl := server.Client.PTTL(t.Context(), "streamcap:sample").Val(); ttl != time.Minute {
		t.Errorf("it stands for %s, want a minute", ttl)
	}
}

func TestForeignKeysAreNotLookedAt(t *testing.T) {
	server := redistest.Start(t)
	w := &world{T: t, store: newRedis(t, server, slotstore.Events{})}
	w.acquires("u1", "r1", 1, slotstore.Granted, 1)
	server.Client.Set(t.Context(), "streamcap:{u2}:slots", "not a sorted set", 0)
	server.Client.ZAdd(t.Context(), "other:{u3}:slots", redis.Z{Score: 9e15, Member: "r1"})
	server.Client.ZAdd(t.Context(), "streamcap:{%probe}:slots", redis.Z{Score: 9e15, Member: "r1"})
	users, err := w.store.Users(t.Context(), 0)
	if err != nil || !slices.Equal(users.Users, []slotstore.UserSlots{{User: "u1", Slots: 1}}) {
		t.Errorf("users %+v, %v", users, err)
	}
}
