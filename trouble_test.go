package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// impatientService is on a Redis of its own, with budgets as a fleet has them.
func impatientService(t *testing.T, settings ...string) (*running, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	s := start(t, append([]string{"REDIS_URL=unix://" + server.Socket}, settings...)...)
	for _, role := range slotstore.Roles {
		s.tested(role, "")
	}
	return s, server
}

// tested waits until a role's self-test has ended with this reason.
func (s *running) tested(role, reason string) map[string]any {
	s.Helper()
	var found map[string]any
	eventually(s.T, fmt.Sprintf("the self-test of %s ends with %q in\n%s", role, reason, s.log), func() bool {
		for _, line := range s.log.find("event", "self_test") {
			got, _ := line["reason"].(string)
			if line["role"] == role && got == reason {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// healthz is the report, and how long it took.
func (s *running) healthz() (report healthReport, took time.Duration) {
	s.Helper()
	begin := time.Now()
	response := s.do("GET", "/healthz", "")
	took = time.Since(begin)
	if err := json.Unmarshal([]byte(bodyOf(response)), &report); err != nil || response.StatusCode != http.StatusOK {
		s.Fatalf("healthz: %s, %v", response.Status, err)
	}
	return report, took
}

func TestBreakerKeepsAnOutageCheapAndEndsItByItself_F01_F05(t *testing.T) {
	s, server := impatientService(t)
	s.acquire("u1", "r1", "204 held")
	server.Signal(syscall.SIGSTOP)
	for n := range 5 {
		s.acquire("u1", fmt.Sprint("slow", n), "204 failopen timeout")
	}
	s.event("redis_circuit_open")
	const quick = 200
	var longest time.Duration
	for n := range quick {
		begin := time.Now()
		s.acquire("u1", fmt.Sprint("quick", n), "204 failopen breaker_open")
		longest = max(longest, time.Since(begin))
	}
	if longest >= 100*time.Millisecond {
		t.Errorf("with the breaker open an acquire took %s: it has waited for the store", longest)
	}
	if report, _ := s.healthz(); report.Status != "degraded" || report.Roles["acquire"].Breaker != "open" || report.Roles["heartbeat"].Breaker != "closed" {
		t.Errorf("healthz %+v", report)
	}

	server.Signal(syscall.SIGCONT)
	closed := s.event("redis_circuit_closed") // without any traffic
	if closed["role"] != "acquire" || closed["reason"] != "timeout" || closed["failed_open"].(float64) < quick+5 || closed["open_seconds"].(float64) <= 0 {
		t.Errorf("closed: %v", closed)
	}
	s.acquire("u1", "enforced", "403 denied stream_limit_reached")
	eventually(t, "all is well", func() bool {
		report, _ := s.healthz()
		return report.Status == "ok" && report.Roles["acquire"] == roleReport{"closed", ""}
	})
}

func TestClientsThatLeaveDoNotOpenTheBreaker_F08(t *testing.T) {
	s, server := withRedis(t)
	s.acquire("u1", "r1", "204 held")
	var leaving sync.WaitGroup
	for n := range 200 {
		leaving.Go(func() {
			ctx, hangUp := context.WithTimeout(t.Context(), time.Duration(n%10)*200*time.Microsecond)
			defer hangUp()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/acquire", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set(headerUser, "u1")
			request.Header.Set(headerRequestID, fmt.Sprint("gone", n))
			if response, err := s.client.Do(request); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	leaving.Wait()
	if report, _ := s.healthz(); report.Status != "ok" {
		t.Errorf("healthz %+v", report)
	}
	s.acquire("u1", "r2", "403 denied stream_limit_reached")
	eventually(t, "nothing of them stays", func() bool {
		return server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val() == 1
	})
}

func TestHungStoreIsSeenBehindAnImpatientNginx(t *testing.T) {
	s, server := impatientService(t, "ACQUIRE_TIMEOUT=200ms")
	s.acquire("u1", "warm", "204 held")
	server.Pause()
	for n := range 5 {
		s.leaves("/acquire", func() bool { return server.Waiting("acquire") > n }, "u1", fmt.Sprint("r", n))
	}
	s.event("redis_circuit_open") // of five clients none has waited for the budget to end
	server.Unpause()
	s.event("redis_circuit_closed")
}

// oneRole forwards to Redis, and swallows what the connections of one role send once it is told to.
type oneRole struct {
	net.Listener
	name    []byte
	swallow chan struct{}
}

func proxyFor(t *testing.T, role, socket string) *oneRole {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	p := &oneRole{Listener: listener, name: []byte("streamcap-" + role), swallow: make(chan struct{})}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go p.forward(near, socket)
		}
	}()
	return p
}

func (p *oneRole) forward(near net.Conn, socket string) {
	defer near.Close()
	far, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer far.Close()
	go func() { _, _ = io.Copy(near, far) }()
	buffer, ours := make([]byte, 64<<10), false
	for {
		n, err := near.Read(buffer)
		if err != nil {
			return
		}
		ours = ours || bytes.Contains(buffer[:n], p.name)
		select {
		case <-p.swallow:
			if ours {
				continue
			}
		default:
		}
		if _, err := far.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestOneRolesTroubleIsNobodyElses_F11(t *testing.T) {
	server := redistest.Start(t)
	proxy := proxyFor(t, slotstore.RoleHeartbeat, server.Socket)
	s := start(t, "REDIS_URL=redis://"+proxy.Addr().String(), "ACQUIRE_TIMEOUT=10s", "RELEASE_TIMEOUT=10s", "HEARTBEAT_TIMEOUT=50ms")
	for _, role := range slotstore.Roles {
		s.tested(role, "")
	}
	s.acquire("u1", "r1", "204 held")
	close(proxy.swallow)
	for range 5 {
		s.heartbeat("u1", "r1", "202 timeout")
	}
	if opened := s.event("redis_circuit_open"); opened["role"] != slotstore.RoleHeartbeat {
		t.Errorf("opened: %v", opened)
	}
	s.heartbeat("u1", "r1", "202 breaker_open")
	s.acquire("u1", "r2", "403 denied stream_limit_reached")
	s.release("u1", "r1", "1")
	s.acquire("u1", "r2", "204 held")
	if report, _ := s.healthz(); report.Roles["acquire"].Breaker != "closed" || report.Roles["heartbeat"].Breaker != "open" {
		t.Errorf("healthz %+v", report)
	}
}

func TestOutageIsAFewLines_F12(t *testing.T) {
	s, server := impatientService(t)
	s.acquire("u1", "warm", "204 held")
	before := strings.Count(s.log.String(), "\n")
	server.Kill()
	const acquires = 10_000
	var load sync.WaitGroup
	for worker := range 8 {
		load.Go(func() {
			for n := range acquires / 8 {
				s.do("GET", "/acquire", "", "X-User-Id: u1", fmt.Sprintf("X-Request-Id: r%d-%d", worker, n))
			}
		})
	}
	load.Wait()
	server.Restart()
	eventually(t, "each breaker that opened closes", func() bool {
		return len(s.log.find("event", "redis_circuit_closed")) == len(s.log.find("event", "redis_circuit_open"))
	})
	during := strings.Count(s.log.String(), "\n") - before
	if during > 25 {
		t.Errorf("%d lines for an outage with %d acquires, want at most 25:\n%s", during, acquires, s.log)
	}
	summed := 0.0
	for _, line := range s.log.find("event", "failopen") {
		summed += line["count"].(float64)
	}
	for _, closed := range s.log.find("event", "redis_circuit_closed") {
		if closed["role"] == slotstore.RoleAcquire && closed["failed_open"].(float64) < acquires || summed == 0 {
			t.Errorf("%v of %d were told of, %v in the lines between:\n%s", closed["failed_open"], acquires, summed, s.log)
		}
	}
}

func TestMisfitIsNamedWhileStreamsStart_F14_F18(t *testing.T) {
	for _, c := range []struct {
		name, rule, reason, hint string
	}{
		{"wrong password", "ACL SETUSER default resetpass >other", "noperm", "password"},
		{"acl without scripts", "ACL SETUSER default -@scripting", "noperm", "ACL line"},
		{"read-only", "REPLICAOF 127.0.0.1 1", "readonly", "primary"},
		{"too many clients", "CONFIG SET maxclients 1", "overload", "maxclients"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			server := redistest.Start(t, "--port", port)
			var args []any
			for word := range strings.FieldsSeq(c.rule) {
				args = append(args, word)
			}
			if err := server.Client.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
			s := start(t, "REDIS_URL=redis://127.0.0.1:"+port, "ACQUIRE_TIMEOUT=10s")
			for _, role := range []string{slotstore.RoleAcquire, slotstore.RoleHeartbeat, slotstore.RoleRelease} {
				line := s.tested(role, c.reason)
				if line["level"] != "error" || !strings.Contains(line["hint"].(string), c.hint) {
					t.Errorf("%s: %v", role, line)
				}
			}
			if report, _ := s.healthz(); report.Status != "degraded" || !strings.HasPrefix(report.Roles["acquire"].LastError, c.reason+": ") {
				t.Errorf("healthz %+v", report)
			}
			response := s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1")
			if response.StatusCode != http.StatusNoContent || response.Header.Get(headerSlot) != "failopen" {
				t.Errorf("acquire: %s %v", response.Status, response.Header)
			}
			var stdout, stderr bytes.Buffer
			environ := []string{"STREAMCAP_LISTEN=" + strings.TrimPrefix(s.url, "http://")}
			if code := run([]string{"healthcheck"}, environ, &stdout, &stderr, nil); code != exitOK || !strings.Contains(stdout.String(), "degraded") {
				t.Errorf("healthcheck: %d %s%s", code, stdout.String(), stderr.String())
			}
			stdout.Reset()
			if code := run([]string{"check"}, []string{"STREAMCAP_REDIS_URL=redis://127.0.0.1:" + port}, &stdout, &stderr, nil); code != exitFailure ||
				!strings.Contains(stdout.String(), "FAILED  "+c.reason) || !strings.Contains(stdout.String(), c.hint) {
				t.Errorf("check: %d\n%s%s", code, stdout.String(), stderr.String())
			}
		})
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestFullRedisStillReleasesAndComesBack_F13(t *testing.T) {
	s, server := impatientService(t, "DEFAULT_LIMIT=2", "RELEASE_TIMEOUT=10s")
	s.acquire("u1", "r1", "204 held")
	server.Client.ConfigSet(t.Context(), "maxmemory", "1")
	server.Client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	for n := range 5 {
		s.acquire("u1", fmt.Sprint("full", n), "204 failopen oom")
	}
	s.acquire("u1", "full", "204 failopen breaker_open")
	s.release("u1", "r1", "1")
	server.Client.ConfigSet(t.Context(), "maxmemory", "0")
	s.event("redis_circuit_closed")
	s.acquire("u1", "r2", "204 held")
	s.acquire("u1", "r3", "204 held")
	s.acquire("u1", "r4", "403 denied stream_limit_reached")
}

func TestOneUsersWrongTypeOpensNoBreaker(t *testing.T) {
	s, server := impatientService(t, "ACQUIRE_TIMEOUT=10s")
	server.Client.Set(t.Context(), "streamcap:{u1}:slots", "not a sorted set", 0)
	for n := range 20 {
		s.acquire("u1", fmt.Sprint("r", n), "204 failopen wrongtype")
	}
	s.acquire("u2", "r1", "204 held")
	if report, _ := s.healthz(); report.Status != "ok" {
		t.Errorf("healthz %+v", report)
	}
}

func TestHealthzNeverWaitsForRedis(t *testing.T) {
	s, server := impatientService(t, "ACQUIRE_TIMEOUT=30s", "HEARTBEAT_TIMEOUT=30s", "RELEASE_TIMEOUT=30s", "ADMIN_TIMEOUT=30s")
	server.Signal(syscall.SIGSTOP)
	for range 20 {
		if _, took := s.healthz(); took > 10*time.Second {
			t.Errorf("healthz took %s", took)
		}
	}
	server.Signal(syscall.SIGCONT)
}

func TestLocalCap(t *testing.T) {
	s, server := impatientService(t, "ON_STORE_FAILURE=local", "DEFAULT_LIMIT=2", "LISTEN=127.0.0.1:0")
	s.acquire("u1", "before", "204 held")
	server.Kill()
	eventually(t, "the outage is noticed", func() bool {
		return s.do("GET", "/acquire", "", "X-User-Id: other", "X-Request-Id: r1").Header.Get(headerReason) == "local"
	})
	first := s.acquire("u1", "r1", "204 held local")
	if first.Header.Get(headerUsed) != "1" || first.Header.Get(headerHeartbeatInterval) != "20" {
		t.Errorf("headers %v", first.Header)
	}
	s.acquire("u1", "r2", "204 held local")
	denied := s.acquire("u1", "r3", "403 denied stream_limit_reached")
	if denied.Header.Get("Retry-After") == "" || denied.Header.Get(headerUsed) != "2" {
		t.Errorf("headers %v", denied.Header)
	}
	s.heartbeat("u1", "r1", "204")
	s.acquire("u1", "r1", "204 held local") // renewed, counted once
	s.release("u1", "r2", "1")
	s.acquire("u1", "r3", "204 held local")
	response := s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: before") // Redis's
	if response.StatusCode != http.StatusAccepted {
		t.Errorf("heartbeat of a slot in Redis: %s", response.Status)
	}

	server.Restart()
	eventually(t, "Redis answers again", func() bool {
		report, _ := s.healthz()
		return report.Status == "ok"
	})
	s.heartbeat("u1", "r1", "204")
	s.acquire("u1", "r1", "204 held local")
	s.batch("/heartbeat", `{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r3"},{"user":"u1","id":"before"}]}`,
		`200 {"extended":2,"gone":[{"user":"u1","id":"before"}]}`)
	s.acquire("u1", "after1", "204 held") // up to one more limit, for as long as the local ones run
	s.acquire("u1", "after2", "204 held")
	s.acquire("u1", "after3", "403 denied stream_limit_reached")
	s.batch("/release", `{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r3"},{"user":"u1","id":"after1"}]}`, `200 {"released":3}`)
	if keys := server.Client.ZRange(t.Context(), "streamcap:{u1}:slots", 0, -1).Val(); fmt.Sprint(keys) != "[after2]" {
		t.Errorf("slots in Redis: %q", keys)
	}
}

// A stream that had its slot before the outage asks for it once more while it lasts, as nginx does on a redirect.
func TestReleaseOfALocalRenewalReachesRedis(t *testing.T) {
	s, server := withRedis(t, "ON_STORE_FAILURE=local", "DEFAULT_LIMIT=1", "ACQUIRE_TIMEOUT=300ms")
	s.acquire("u1", "during", "204 held")
	s.acquire("u2", "after", "204 held")
	server.Pause()
	s.acquire("u1", "during", "204 held local")
	s.acquire("u2", "after", "204 held local")
	s.release("u1", "during", "1")
	server.Unpause()
	s.release("u2", "after", "1")
	eventually(t, "Redis has no slot of either", func() bool {
		return server.Client.Exists(t.Context(), "streamcap:{u1}:slots", "streamcap:{u2}:slots").Val() == 0
	})
	s.acquire("u1", "next", "204 held")
	s.acquire("u2", "next", "204 held")
	if got := s.scrape()[`streamcap_release_total{result="released",source="backend"}`]; got != 2 {
		t.Errorf("two releases count as %v", got)
	}
}

// The bound is that of the kept releases; what is kept twice, or not at all, is not counted as kept.
func TestWhatIsKeptCountsOnce_M04(t *testing.T) {
	m := newMetrics()
	u := &unsettled{slotTTL: time.Minute, metrics: m, log: zerolog.Nop()}
	ids := make([]slotstore.ID, unsettledMost+5)
	for i := range ids {
		ids[i] = slotstore.ID{User: "u1", Request: fmt.Sprint("r", i)}
	}
	u.keepTwins(ids)
	u.keepReleases(sourceBackend, ids)
	u.keepReleases(sourceNginx, ids[:10])
	recorder := httptest.NewRecorder()
	m.handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	got := series(t, recorder.Body)
	for name, want := range map[string]float64{
		`streamcap_release_total{result="unrecorded",source="backend"}`: unsettledMost / 2,
		`streamcap_release_total{result="unrecorded",source="nginx"}`:   0,
		`streamcap_shed_total{role="release"}`:                          5,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestLocalCapIsBounded_F19(t *testing.T) {
	cfg := mustLoad(t, "ON_STORE_FAILURE=local", "REDIS_URL=redis://127.0.0.1:1")
	s := newService(cfg, zerolog.Nop())
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s.store = answeringStore{acquire: failsWith(slotstore.Unavailable)}
	handler := s.publicHandler()
	got := make(map[string]int)
	for n := range localUsers + 1000 {
		recorder := answerTo(handler, fmt.Sprint("X-User-Id: u", n), "X-Request-Id: r1")
		got[recorder.Header().Get(headerSlot)+" "+recorder.Header().Get(headerReason)]++
	}
	if got["held local"] != localUsers || got["failopen overload"] != 1000 {
		t.Errorf("answers %v", got)
	}
	if again := answerTo(handler, "X-User-Id: u1", "X-Request-Id: r2"); again.Header().Get(headerReason) != "stream_limit_reached" {
		t.Errorf("a user that is known: %v", again.Header())
	}
}

func TestManyAcquiresAtASlowRedisAreAllAnswered_F04(t *testing.T) {
	s, server := impatientService(t)
	server.Pause()
	defer server.Unpause()
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		reasons = make(map[string]int)
	)
	for n := range 500 {
		all.Go(func() {
			response := s.do("GET", "/acquire", "", fmt.Sprint("X-User-Id: u", n), "X-Request-Id: r1")
			mu.Lock()
			defer mu.Unlock()
			reasons[response.Status[:3]+" "+response.Header.Get(headerReason)]++
		})
	}
	all.Wait()
	total := 0
	for reason, n := range reasons {
		if !strings.HasPrefix(reason, "204 ") {
			t.Errorf("%d times %s", n, reason)
		}
		total += n
	}
	if total != 500 || reasons["204 timeout"] == 0 {
		t.Errorf("answers %v", reasons)
	}
}

func TestEvictionPolicyIsRead(t *testing.T) {
	for _, c := range []struct {
		args  []string
		level string
	}{
		{[]string{"--maxmemory", "100mb", "--maxmemory-policy", "noeviction"}, "warn"},
		{[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, "info"},
		{nil, "info"}, // noeviction without a limit
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			s := start(t, "REDIS_URL=unix://"+server.Socket)
			if line := s.event("eviction_policy"); line["level"] != c.level {
				t.Errorf("%v", line)
			}
		})
	}
}

func TestFailureKeepsItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the second line is not due in it
		var output bytes.Buffer
		trouble := newTrouble(newLogger(&output, "info", "json"), redisConfig{})
		for range 3 {
			trouble.failed(slotstore.RoleAcquire, &slotstore.Error{Op: "acquire", Reason: slotstore.OOM, Err: errors.New("as the test wants")})
		}
		if lines := strings.Count(output.String(), "\n"); lines != 1 || !strings.Contains(output.String(), `"reason":"oom"`) {
			t.Errorf("%s", output.String())
		}
	})
}

func TestThrottleLetsFewerThroughAsTroubleGoesOn_F12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := throttle{every: time.Second, most: time.Minute}
		var written, told atomic.Int64
		fail := func() {
			lines.say("acquire", func(count int) {
				written.Add(1)
				told.Add(int64(count))
			})
		}
		for range 60_000 { // a minute of a thousand a second
			fail()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if w, told := written.Load(), told.Load(); w != 6 || told < 31_000 || told > 31_001 {
			t.Errorf("%d lines that tell of %d, want 6 (after 0, 1, 3, 7, 15, 31 s) and 31000", w, told)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if written.Load() != 7 || told.Load() != 60_000 {
			t.Errorf("once it is over %d lines tell of %d, want 7 of 60000", written.Load(), told.Load())
		}
		time.Sleep(3 * time.Minute)
		if fail(); written.Load() != 8 {
			t.Error("quiet for minutes, and no line")
		}
		time.Sleep(time.Second)
		if fail(); written.Load() != 9 {
			t.Error("it has not begun anew")
		}
	})
}

func TestTroubleThatComesAndGoesIsALineASecond_F12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, written := throttle{every: time.Second, most: time.Minute}, 0
		for range 100 { // ten seconds of a breaker that opens and closes
			lines.say("acquire", func(int) { written++ })
			lines.forget("acquire")
			time.Sleep(100 * time.Millisecond)
		}
		if written != 10 {
			t.Errorf("%d lines in 10 s", written)
		}
	})
}

// awayStore answers nothing until a time.
type awayStore struct {
	slotstore.Store

	until  time.Time
	undone []string
}

func (s *awayStore) Undo(_ context.Context, id slotstore.ID, _ string) (bool, error) {
	if time.Now().Before(s.until) {
		return false, errors.New("away")
	}
	s.undone = append(s.undone, id.Request)
	return true, nil
}

func TestAcquireIsUndoneHoweverLongTheStoreWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &awayStore{until: time.Now().Add(time.Hour)}
		u := &unsettled{store: store, slotTTL: time.Minute, metrics: newMetrics(), log: zerolog.Nop()}
		u.keepUndo(slotstore.ID{User: "u1", Request: "late"}, "attempt")
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { u.run(ctx) })
		time.Sleep(time.Hour + time.Second)
		stop()
		running.Wait()
		if len(store.undone) != 1 || u.depth() != 0 {
			t.Errorf("undone: %q, kept: %d", store.undone, u.depth())
		}
	})
}

func TestForeignKeyKeepsNobodyElsesWorkWaiting(t *testing.T) {
	s, server := withRedis(t, "ACQUIRE_TIMEOUT=300ms", "DEFAULT_LIMIT=1")
	server.Client.Set(t.Context(), "streamcap:{odd}:slots", "somebody else's", 0)
	for range 20 {
		s.acquire("odd", "r1", "204 failopen wrongtype")
	}
	s.wants("202 wrongtype", s.do("POST", "/release", "", "X-User-Id: odd", "X-Request-Id: r1"))
	server.Pause()
	s.acquire("good", "r1", "204 failopen timeout")
	server.Unpause()
	undone := `streamcap_release_total{result="released",source="abandoned"}`
	eventually(t, "what was taken for an acquire that failed open is undone", func() bool { return s.scrape()[undone] == 1 })
	s.acquire("good", "r2", "204 held")
}
