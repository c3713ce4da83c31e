package slotstore_test

import (
	"io"
	"net"
	"os"
	"regexp"
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

// budgets are the service's own.
var budgets = slotstore.RedisOptions{
	Mode: "standalone", Network: "tcp", Prefix: "streamcap",
	AcquireTimeout: 100 * time.Millisecond, HeartbeatTimeout: 200 * time.Millisecond,
	ReleaseTimeout: 200 * time.Millisecond, AdminTimeout: 2 * time.Second,
}

// at are the service's own budgets for these addresses.
func at(mode string, addresses ...string) slotstore.RedisOptions {
	options := budgets
	options.Mode, options.Addresses = mode, addresses
	return options
}

// flavour is a store and what it tells of its self-tests, as "role reason".
type flavour struct {
	*world
	redis *slotstore.Redis

	mu    sync.Mutex
	tests []string
}

func open(t *testing.T, options slotstore.RedisOptions) *flavour {
	t.Helper()
	f := &flavour{}
	f.redis = slotstore.NewRedis(options, lifetimes, slotstore.Events{SelfTest: func(role string, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tests = append(f.tests, strings.TrimSpace(role+" "+string(slotstore.ReasonOf(err))))
	}})
	f.world = &world{T: t, store: f.redis}
	t.Cleanup(func() { f.redis.Close() })
	return f
}

// patient is open with the time that a busy machine may need.
func patient(t *testing.T, options slotstore.RedisOptions) *flavour {
	t.Helper()
	options.AcquireTimeout, options.HeartbeatTimeout = 10*time.Second, 10*time.Second
	options.ReleaseTimeout, options.AdminTimeout = 10*time.Second, 10*time.Second
	return open(t, options)
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (f *flavour) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tests)
}

// wellRoles waits for each role's self-test, which must succeed.
func (f *flavour) wellRoles() {
	f.Helper()
	eventually(f.T, "every role is well", func() bool { return len(f.told()) >= len(slotstore.Roles) })
	for _, told := range f.told() {
		if strings.Contains(told, " ") {
			f.Fatalf("self-tests %q", f.told())
		}
	}
}

func (f *flavour) checks() {
	f.Helper()
	for _, probe := range f.redis.Check(f.Context()) {
		if probe.Err != nil {
			f.Errorf("check: %s: %v", probe.Role, probe.Err)
		}
	}
}

// works wants every role to be well, and one slot taken, kept, refused to another and given back.
func (f *flavour) works() {
	f.Helper()
	f.wellRoles()
	f.checks()
	f.acquires("u1", "r1", 1, slotstore.Granted, 1)
	f.acquires("u1", "r2", 1, slotstore.Denied, 1)
	f.extends("u1", "r1", true)
	f.releases("u1", "r1", true)
}

// soonChecks waits until every role can do its work: those that nobody used while a primary changed have yet to notice.
func (f *flavour) soonChecks() {
	f.Helper()
	eventually(f.T, "every role can do its work", func() bool {
		return !slices.ContainsFunc(f.redis.Check(f.Context()), func(probe slotstore.Probe) bool { return probe.Err != nil })
	})
}

// answersWithin waits until an acquire is decided, which must be soon.
func (f *flavour) answersWithin(limit time.Duration, user string, since time.Time) {
	f.Helper()
	var err error
	for n := 0; ; n++ {
		if _, err = f.store.Acquire(f.Context(), slotstore.Request{ID: id(user, "back"), Limit: -1, Attempt: attempts()}); err == nil {
			break
		}
		if time.Since(since) > limit+10*time.Second {
			f.Fatalf("not answered within %s: %v", limit, err)
		}
		time.Sleep(2 * time.Millisecond) // between two polls
	}
	took := time.Since(since)
	f.Logf("%s: enforcing again after %s", user, took)
	if took > limit {
		f.Errorf("enforcing again after %s, want %s", took, limit)
	}
}

// busy opens as many connections of the acquire role as it has.
func busy(t *testing.T, f *flavour, server *redistest.Server) {
	t.Helper()
	server.Pause()
	var calls sync.WaitGroup
	for n := range 8 {
		calls.Go(func() {
			// Where the machine is slow its budget may end first, and the connection is there all the same.
			_, _ = f.store.Acquire(t.Context(), slotstore.Request{ID: id("busy"+strconv.Itoa(n), "r1"), Limit: 1, Attempt: attempts()})
		})
		eventually(t, "it waits on a connection of its own", func() bool { return server.Waiting("acquire") == n+1 })
	}
	server.Unpause()
	calls.Wait()
}

func TestPrimaryChangesBehindOneName_F05(t *testing.T) {
	for wording, reply := range map[string]string{
		"redis 7": "-READONLY You can't write against a read only replica. script: 0, on @user_script:47.",
		"redis 6": "-ERR Error running script (call to f_0123456789012345678901234567890123456789): @user_script:12: @user_script: 12: -READONLY You can't write against a read only replica. ",
		"redis 5": "-ERR Error running script (call to f_0123456789012345678901234567890123456789): @user_script:12: @user_script: 12: -READONLY You can't write against a read only slave. ",
	} {
		t.Run(wording, func(t *testing.T) {
			t.Parallel()
			first, second := redistest.Start(t), redistest.Start(t)
			name := redistest.NewName(t, func(line string) string {
				if strings.HasPrefix(line, "-READONLY ") {
					return reply + "\r\n"
				}
				return line
			})
			name.Point("unix", first.Socket)
			f := patient(t, at("standalone", name.Address))
			f.wellRoles()
			busy(t, f, first) // each connection leads to the first server, and none of them will break
			first.Client.Do(t.Context(), "REPLICAOF", "127.0.0.1", redistest.FreePort(t))
			acquireFails(t, f.store, slotstore.ReadOnly)
			name.Point("unix", second.Socket)
			f.answersWithin(time.Second, "u1", time.Now())
			for n := range 20 { // whichever connection they get
				f.acquires("after"+strconv.Itoa(n), "r1", 1, slotstore.Granted, 1)
			}
			f.extends("after0", "r1", true)
			f.releases("after0", "r1", true)
			f.holds("after1", "r1")
		})
	}
}

func TestRedisIsBackElsewhereBehindTheSameName_F05(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t), redistest.Start(t)
	name := redistest.NewName(t, nil)
	name.Point("unix", first.Socket)
	options := at("standalone", name.Address)
	options.AcquireTimeout = 500 * time.Millisecond
	f := open(t, options)
	f.wellRoles()
	busy(t, f, first)
	// A host that is gone neither answers nor refuses. That takes a second to notice, on one connection and not on each.
	first.Signal(syscall.SIGSTOP)
	name.Point("unix", second.Socket)
	f.answersWithin(2*time.Second, "u1", time.Now())
	f.acquires("u1", "r2", 1, slotstore.Denied, 1)
}

// opens has acquires fail until the breaker is open, which is after five.
func (f *flavour) opens(user string) {
	f.Helper()
	sent := 0
	eventually(f.T, "the breaker opens", func() bool {
		_, err := f.store.Acquire(f.Context(), slotstore.Request{ID: id(user, "away"), Limit: -1, Attempt: attempts()})
		reason := slotstore.ReasonOf(err)
		if reason != slotstore.BreakerOpen {
			sent++
		}
		return reason == slotstore.BreakerOpen
	})
	if sent > 5 {
		f.Errorf("%d calls were sent before the breaker opened", sent)
	}
}

func TestRedisIsBackAfterManyFailedDials_F05(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	options := at("standalone", server.Socket)
	options.Network = "unix"
	f := open(t, options)
	f.wellRoles()
	for _, outage := range []time.Duration{2100 * time.Millisecond, 2700 * time.Millisecond} {
		server.Kill()
		f.opens("u1")
		time.Sleep(outage) // the driver's pool gives up after as many failed dials as it has room for
		server.Restart()
		f.answersWithin(time.Second, "u1", time.Now())
	}
}

func TestRedisThatNeverAnswersCostsTheBudgetAndOneConnection_F03(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	address := redistest.Listen(t, func(conn net.Conn) {
		conns.Add(1)
		_, _ = io.Copy(io.Discard, conn)
	})
	f := open(t, at("standalone", address))
	eventually(t, "the self-tests have been sent", func() bool { return conns.Load() >= 4 })
	before := conns.Load()
	shortest := time.Hour // of some: the machine may be busy
	for range 2 {
		start := time.Now()
		acquireFails(t, f.store, slotstore.Timeout)
		shortest = min(shortest, time.Since(start))
	}
	if shortest > 150*time.Millisecond {
		t.Errorf("the caller waited %s for a budget of 100ms", shortest)
	}
	// Until her call ends for good, its connection is one of those that the probes make: one a role, each half second.
	time.Sleep(1100 * time.Millisecond) // what is not to happen leaves nothing to wait for
	if tried := conns.Load() - before; tried > 2+4*3+1 {
		t.Errorf("%d connections, of which the probes made 12 at the most", tried)
	}
	eventually(t, "every role says what is wrong", func() bool { return len(f.told()) == 4 })
	for _, told := range f.told() {
		if !strings.HasSuffix(told, " timeout") {
			t.Errorf("told %q", told)
		}
	}
}

func TestRedisThatTakesNothingInHoldsNobodyUp_F03(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	options := at("standalone", server.Socket)
	options.Network = "unix"
	f := open(t, options)
	f.wellRoles()
	f.extends("u1", "r1", false) // a connection that was used before has no deadline left
	server.Signal(syscall.SIGSTOP)
	var ids []slotstore.ID
	for n := range 500 {
		ids = append(ids, id(strings.Repeat("/", 250)+strconv.Itoa(n), strings.Repeat("r", 128)))
	}
	start := time.Now()
	if _, err := f.store.Heartbeat(t.Context(), ids...); slotstore.ReasonOf(err) != slotstore.Timeout {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("the caller waited %s for a budget of 200ms", took)
	}
	closed := make(chan error, 1)
	go func() { closed <- f.redis.Close() }()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the store can't be closed: a connection waits for ever")
	}
}

// Each call is well within its budget, and all of a self-test's together are not.
func TestRedisThatIsFarAwayIsEnforcedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var away atomic.Bool
	address := redistest.Listen(t, func(near net.Conn) {
		if away.Load() {
			return
		}
		far, err := new(net.Dialer).DialContext(t.Context(), "unix", server.Socket)
		if err != nil {
			return
		}
		defer far.Close()
		go func() {
			defer far.Close()
			_, _ = io.Copy(far, near)
		}()
		buffer := make([]byte, 64<<10)
		for {
			n, err := far.Read(buffer)
			if err != nil {
				return
			}
			time.Sleep(150 * time.Millisecond) // the way
			if _, err := near.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	options := at("standalone", address)
	options.AcquireTimeout, options.HeartbeatTimeout = 250*time.Millisecond, 250*time.Millisecond
	f := open(t, options)
	breakers := func(state string) func() bool {
		return func() bool {
			acquire := slotstore.Request{ID: id("u1", "r1"), Limit: 1, Attempt: attempts()}
			_, _ = f.store.Acquire(t.Context(), acquire)
			_, _ = f.store.Heartbeat(t.Context(), acquire.ID)
			health := f.store.Health()
			return health[0].Breaker == state && health[1].Breaker == state
		}
	}
	eventually(t, "both are well", breakers("closed"))
	away.Store(true)
	server.Client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	eventually(t, "both have failed", breakers("open"))
	away.Store(false)
	eventually(t, "both are well again", breakers("closed"))
}

// Batches, and what is tried again, are one caller each: the number is that of people.
func TestFailedOpenCountsCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	name := redistest.NewName(t, nil)
	closed := make(chan slotstore.Circuit, 2*len(slotstore.Roles))
	options := at("standalone", name.Address)
	store := slotstore.NewRedis(options, lifetimes, slotstore.Events{Circuit: func(circuit slotstore.Circuit) {
		if !circuit.Open {
			closed <- circuit
		}
	}})
	t.Cleanup(func() { store.Close() })
	ids := make([]slotstore.ID, 1200)
	for n := range ids {
		ids[n] = id("u1", "r"+strconv.Itoa(n))
	}
	const callers = 7
	for range callers {
		_, _ = store.Heartbeat(t.Context(), ids...)
		_, _ = store.Release(t.Context(), ids...)
		_, _ = store.Release(slotstore.Again(t.Context()), ids...)
	}
	name.Point("unix", server.Socket)
	for told := 0; told < 2; {
		switch circuit := <-closed; circuit.Role {
		case slotstore.RoleHeartbeat, slotstore.RoleRelease:
			told++
			if circuit.FailedOpen != callers {
				t.Errorf("%s: %d failed open, want %d", circuit.Role, circuit.FailedOpen, callers)
			}
		}
	}
}

func TestScriptsMayNotAskForTheTime_D01(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	refusal := "-ERR Error running script (call to f_0): @user_script:9: Write commands not allowed after non deterministic commands.\r\n"
	name := redistest.NewName(t, func(line string) string {
		if strings.HasPrefix(line, "-NOSCRIPT ") { // no script of ours does without TIME, and none is known yet
			return refusal
		}
		return line
	})
	name.Point("unix", server.Socket)
	f := open(t, at("standalone", name.Address))
	start := time.Now()
	eventually(t, "every role says so", func() bool { return len(f.told()) == 4 })
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("told after %s", took)
	}
	for _, told := range f.told() {
		if !strings.HasSuffix(told, " internal") {
			t.Errorf("told %q", told)
		}
	}
	acquireFails(t, f.store, slotstore.Internal)
}

func TestRenamedCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--rename-command", "CONFIG", "", "--rename-command", "INFO", "", "--rename-command", "CLIENT", "", "--rename-command", "HELLO", "")
	f := patient(t, slotstore.RedisOptions{Mode: "standalone", Network: "unix", Addresses: []string{server.Socket}, Prefix: "streamcap"})
	f.works()
}

// readmesACL is the README's ACL line, in words.
func readmesACL(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(regexp.MustCompile(`(?m)^ACL SETUSER streamcap .*$`).FindString(string(readme)))
}

// clusterACL is that line with what a cluster needs beside: to ask where the slots are, and to follow one that moves.
func clusterACL(t *testing.T) []string {
	t.Helper()
	return append(readmesACL(t), "+cluster|slots", "+asking")
}

// sentinelACL is all that a user of sentinels needs.
var sentinelACL = strings.Fields("ACL SETUSER streamcap on >password resetchannels &* -@all +sentinel|get-master-addr-by-name +sentinel|sentinels +subscribe +ping +hello +client|setname")
