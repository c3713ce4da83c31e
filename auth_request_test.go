package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// answeringStore answers every acquire in its own way.
type answeringStore struct {
	slotstore.Store
	acquire func() (slotstore.Decision, error)
}

func (s answeringStore) Acquire(context.Context, slotstore.Request) (slotstore.Decision, error) {
	return s.acquire()
}

func failsWith(reason slotstore.Reason) func() (slotstore.Decision, error) {
	return func() (slotstore.Decision, error) {
		return slotstore.Decision{}, &slotstore.Error{Op: "acquire", Reason: reason, Err: errors.New("as the test wants")}
	}
}

func mustLoad(t *testing.T, settings ...string) config {
	t.Helper()
	var environ []string
	for _, setting := range settings {
		environ = append(environ, "STREAMCAP_"+setting)
	}
	cfg, err := loadConfig(environ)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestHeldSlotHasItsHeaders(t *testing.T) {
	eachStore(t, func(s *running) {
		response := s.acquire("u1", "r1", "204 held")
		for name, want := range map[string]string{
			headerLimit: "2", headerUsed: "1", headerHeartbeatInterval: "1.5", "Cache-Control": "no-store", headerReason: "", "Retry-After": "",
		} {
			if got := response.Header.Get(name); got != want {
				s.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if text := bodyOf(response); text != "" {
			s.Errorf("body %q", text)
		}
		again := s.acquire("u1", "r1", "204 held")
		if got := again.Header.Get(headerUsed); got != "1" {
			s.Errorf("used %q after the same id again, want 1", got)
		}
	}, "DEFAULT_LIMIT=2", "HEARTBEAT_INTERVAL=1500ms")
}

func TestDenialHasItsHeaders_N01_N03(t *testing.T) {
	for _, status := range []string{"403", "429"} {
		t.Run(status, func(t *testing.T) {
			eachStore(t, func(s *running) {
				s.acquire("u1", "r1", "204 held")
				response := s.acquire("u1", "r2", status+" denied stream_limit_reached")
				seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
				if err != nil || seconds < 110 || seconds > 120 {
					s.Errorf("Retry-After %q, want 110 to 120", response.Header.Get("Retry-After"))
				}
				for name, want := range map[string]string{
					headerLimit: "1", headerUsed: "1", headerHeartbeatInterval: "", "Cache-Control": "no-store", "Content-Length": "0",
				} {
					if got := response.Header.Get(name); got != want {
						s.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				none := s.acquire("u2", "r1", status+" denied stream_limit_reached", "X-Stream-Limit: 0")
				if got := none.Header.Get("Retry-After"); got != "" {
					s.Errorf("Retry-After %q under limit 0", got)
				}
				line := s.event("denied")
				if line["user"] != "u1" || line["used"] != 1.0 || line["limit"] != 1.0 || fmt.Sprint(line["ids"]) != "[r1]" {
					s.Errorf("log line %v", line)
				}
			}, "DENY_STATUS="+status)
		})
	}
}

func TestRetryAfterIsRoundedUp(t *testing.T) {
	for remaining, want := range map[time.Duration]string{
		time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", 2 * time.Minute: "120",
	} {
		store := answeringStore{acquire: func() (slotstore.Decision, error) {
			return slotstore.Decision{Used: 1, RetryAfter: remaining}, nil
		}}
		response := ask(mustLoad(t), store, "X-User-Id: u1", "X-Request-Id: r1")
		if got := response.Header().Get("Retry-After"); got != want {
			t.Errorf("%s: Retry-After %q, want %q", remaining, got, want)
		}
	}
}

// serviceOn is a service on a store of the test's.
func serviceOn(cfg config, store slotstore.Store) *service {
	metrics := newMetrics()
	return &service{
		cfg: cfg, log: zerolog.Nop(), store: store, metrics: metrics, trouble: newTrouble(zerolog.Nop(), cfg.Redis),
		unsettled: &unsettled{store: store, slotTTL: cfg.SlotTTL, metrics: metrics},
	}
}

// ask has the acquire handler answer one request, on a store of the test's.
func ask(cfg config, store slotstore.Store, headers ...string) *httptest.ResponseRecorder {
	return answerTo(serviceOn(cfg, store).publicHandler(), headers...)
}

// answerTo is a handler's answer to one acquire.
func answerTo(handler http.Handler, headers ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, "/acquire", http.NoBody)
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Add(name, value)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder
}

func TestStatusTable(t *testing.T) {
	granted := func() (slotstore.Decision, error) {
		return slotstore.Decision{Outcome: slotstore.Granted, Used: 1}, nil
	}
	denied := func() (slotstore.Decision, error) { return slotstore.Decision{Used: 3, RetryAfter: time.Second}, nil }
	panics := func() (slotstore.Decision, error) { panic("as the test wants") }
	both := []string{"X-User-Id: u1", "X-Request-Id: r1"}
	for _, c := range []struct {
		name     string
		settings []string
		store    func() (slotstore.Decision, error)
		headers  []string
		want     string // status, X-Stream-Slot, X-Stream-Reason, X-Stream-Used, Retry-After
	}{
		{"granted", nil, granted, both, "204|held||1|"},
		{"denied", nil, denied, both, "403|denied|stream_limit_reached|3|1"},
		{"denied as 429", []string{"DENY_STATUS=429"}, denied, both, "429|denied|stream_limit_reached|3|1"},
		{"shadow", []string{"ENFORCE=false"}, denied, both, "204|uncounted|shadow|3|"},
		{"preflight", nil, panics, append(both, "X-Original-Method: OPTIONS"), "204|uncounted|preflight||"},
		{"head", nil, panics, append(both, "X-Original-Method: HEAD"), "204|uncounted|preflight||"},
		{"preflight comes first", []string{"ON_MISSING_ID=deny"}, panics, []string{"X-Original-Method: OPTIONS"}, "204|uncounted|preflight||"},
		{"post", nil, granted, append(both, "X-Original-Method: POST"), "204|held||1|"},
		{"no user", nil, panics, both[1:], "204|uncounted|no_user||"},
		{"no request id", nil, panics, both[:1], "204|uncounted|no_request_id||"},
		{"neither", nil, panics, nil, "204|uncounted|no_user||"},
		{"no user, deny", []string{"ON_MISSING_ID=deny"}, panics, both[1:], "401|denied|no_user||"},
		{"no request id, deny", []string{"ON_MISSING_ID=deny", "DENY_STATUS=429"}, panics, both[:1], "401|denied|no_request_id||"},
		{"no user, deny, shadow", []string{"ON_MISSING_ID=deny", "ENFORCE=false"}, panics, both[1:], "204|uncounted|shadow||"},
		{"store away", nil, failsWith(slotstore.Unavailable), both, "204|failopen|unavailable||"},
		{"store away, closed", []string{"ON_STORE_FAILURE=closed"}, failsWith(slotstore.OOM), both, "403|denied|store_unavailable||1"},
		{"store away, closed as 429", []string{"ON_STORE_FAILURE=closed", "DENY_STATUS=429"}, failsWith(slotstore.OOM), both, "429|denied|store_unavailable||1"},
		{"store away, closed, shadow", []string{"ON_STORE_FAILURE=closed", "ENFORCE=false"}, failsWith(slotstore.OOM), both, "204|uncounted|shadow||"},
		{"panic", nil, panics, both, "204|failopen|internal||"},
		{"panic, closed", []string{"ON_STORE_FAILURE=closed"}, panics, both, "403|denied|store_unavailable||1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			response := ask(mustLoad(t, c.settings...), answeringStore{acquire: c.store}, c.headers...)
			header := response.Header()
			got := strings.Join([]string{
				strconv.Itoa(response.Code), header.Get(headerSlot), header.Get(headerReason), header.Get(headerUsed), header.Get("Retry-After"),
			}, "|")
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if header.Get(headerLimit) != "1" || header.Get("Cache-Control") != "no-store" || response.Body.Len() > 0 {
				t.Errorf("limit %q, cache control %q, body %q", header.Get(headerLimit), header.Get("Cache-Control"), response.Body)
			}
		})
	}
}

// serveStore serves the public listener's handler on a store of the test's.
func serveStore(t *testing.T, cfg config, store slotstore.Store) *running {
	t.Helper()
	server := httptest.NewServer(serviceOn(cfg, store).publicHandler())
	t.Cleanup(server.Close)
	return &running{T: t, url: server.URL, client: server.Client(), log: &logLines{}}
}

func TestEveryReasonOfTheStoreIsTold(t *testing.T) {
	for _, reason := range []slotstore.Reason{
		slotstore.Timeout, slotstore.Unavailable, slotstore.BreakerOpen, slotstore.Overload, slotstore.OOM,
		slotstore.ReadOnly, slotstore.NoPerm, slotstore.WrongType, slotstore.Moved, slotstore.Internal,
	} {
		response := ask(mustLoad(t), answeringStore{acquire: failsWith(reason)}, "X-User-Id: u1", "X-Request-Id: r1")
		if got := response.Header().Get(headerReason); response.Code != 204 || got != string(reason) {
			t.Errorf("%s: %d %q", reason, response.Code, got)
		}
	}
}

func TestAnyMethodPathAndHost_N05(t *testing.T) {
	eachStore(t, func(s *running) {
		for _, method := range []string{"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PROPFIND", "FOO"} {
			for _, path := range []string{"/acquire", "/acquire/", "/acquire///", "/acquire?a=b&c", "/acquire//?/x"} {
				for _, host := range []string{"x", "a.b:99", "[::1]"} {
					s.wants("204 held", s.do(method, path, "", "X-User-Id: u1", "X-Request-Id: r1", "Host: "+host))
				}
			}
		}
		for _, path := range []string{"/", "/acquire/x", "/acquirex", "//acquire", "/metrics", "/admin/"} {
			if response := s.do("GET", path, ""); response.StatusCode != http.StatusNotFound {
				s.Errorf("%s: %s", path, response.Status)
			}
		}
		if got := s.raw("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"); got != "HTTP/1.1 404 Not Found" {
			s.Errorf("OPTIONS *: %s", got)
		}
		if got := s.raw("GET http://any/acquire HTTP/1.1\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n\r\n"); got != "HTTP/1.1 204 No Content" {
			s.Errorf("absolute form: %s", got)
		}
	})
}

// raw sends bytes on a connection of its own and returns the answer's status line, and whether it came within a second.
func (s *running) raw(bytes string) (status string) {
	s.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err = io.WriteString(conn, bytes); err != nil {
		s.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		s.Fatalf("no answer to %.60q: %v", bytes, err)
	}
	return strings.TrimSpace(line)
}

func TestAnnouncedBodyIsNeverWaitedFor_N06(t *testing.T) {
	eachStore(t, func(s *running) {
		for n, body := range []string{
			"Content-Length: 77\r\n\r\n", "Content-Length: 10485760\r\n\r\n", "Content-Length: 77\r\n\r\nsome of it",
			"Transfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nff\r\nx", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
			"Content-Length: 5\r\n\r\nwhole",
		} {
			// The 5 s after which raw gives up are half of what the service gives a body.
			got := s.raw(fmt.Sprintf("POST /acquire HTTP/1.1\r\nHost: x\r\nX-User-Id: u%d\r\nX-Request-Id: r1\r\n%s", n, body))
			if got != "HTTP/1.1 204 No Content" {
				s.Errorf("%.40q: %s", body, got)
			}
		}
		big := strings.Repeat("x", 10<<20)
		s.wants("204 held", s.do("POST", "/acquire", big, "X-User-Id: u1", "X-Request-Id: r1"))
	}, "DEFAULT_LIMIT=2")
}

func TestHeadersUpTo64KiB(t *testing.T) {
	s := start(t)
	s.wants("204 held", s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1", "Cookie: "+strings.Repeat("c", 64<<10)))
	many := []string{"X-User-Id: u1", "X-Request-Id: r1"}
	for n := range 2000 {
		many = append(many, fmt.Sprintf("X-Filler-%d: 0123456789", n))
	}
	s.wants("204 held", s.do("GET", "/acquire", "", many...))
	if got := s.raw("GET /acquire HTTP/1.0\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n\r\n"); got != "HTTP/1.0 204 No Content" {
		t.Errorf("HTTP/1.0: %s", got)
	}
}

func TestBadUserIsNobodysSlot_A11_S02(t *testing.T) {
	eachStore(t, func(s *running) {
		for _, headers := range [][]string{
			nil, {"X-User-Id: "}, {"X-User-Id:    "}, {"X-User-Id: -"}, {"X-User-Id: u1", "X-User-Id: u2"}, {"X-User-Id: u1", "X-User-Id: u1"},
			{"X-User-Id: " + strings.Repeat("x", 257)}, {"X_User_Id: u1"}, {"X-User-Id: a\tb"},
		} {
			for n := range 2 {
				s.wants("204 uncounted no_user", s.do("GET", "/acquire", "", append(headers, fmt.Sprint("X-Request-Id: r", n))...))
			}
		}
		s.warnsOnce("directive", "X-User-Id")
		for _, user := range []string{"u1, u2", " u1 ", "{u1}", "a/b", "\xff\xfe", "é", "%", "a b", "--", strings.Repeat("x", 256)} {
			s.acquire(user, "r1", "204 held")
			s.acquire(user, "r2", "403 denied stream_limit_reached")
		}
		s.acquire("u1", "r2", "403 denied stream_limit_reached") // trimmed above
	})
}

func TestBadRequestIDIsNobodysSlot_A12_S09(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "good", "204 held")
		var parallel sync.WaitGroup
		for range 10 {
			parallel.Go(func() { s.wants("204 uncounted no_request_id", s.do("GET", "/acquire", "", "X-User-Id: u1")) })
		}
		parallel.Wait()
		for _, id := range []string{"", "a b", "a/b", "\x1b[31m", "\"", "\xff", "é", strings.Repeat("r", 129), strings.Repeat("r", 60_000), "a,b"} {
			if strings.ContainsRune(id, 0x1b) {
				continue // net/http's client does not send it; nginx.conf.example never does
			}
			s.wants("204 uncounted no_request_id", s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: "+id))
			response := s.do("POST", "/release", "", "X-User-Id: u1", "X-Request-Id: "+id)
			if response.StatusCode != http.StatusBadRequest {
				s.Errorf("release of %.20q: %s", id, response.Status)
			}
		}
		s.warnsOnce("directive", "X-Request-Id $request_id")
		s.heartbeat("u1", "good", "204")
		s.acquire("u2", "A-z.0_9:", "204 held")
		s.acquire("u3", strings.Repeat("r", 128), "204 held")
	})
}

func TestTrustedLimitBeatsPlanBeatsDefault(t *testing.T) {
	s := start(t, "DEFAULT_LIMIT=7", "LIMITS=free:1,paid:3,team:eu:5,staff:-1,none:0")
	for n, c := range []struct {
		headers []string
		limit   string
	}{
		{nil, "7"},
		{[]string{"X-Plan: free"}, "1"},
		{[]string{"X-Plan:  paid "}, "3"},
		{[]string{"X-Plan: team:eu"}, "5"},
		{[]string{"X-Plan: staff"}, "-1"},
		{[]string{"X-Plan: none"}, "0"},
		{[]string{"X-Plan: Free"}, "7"},
		{[]string{"X-Plan: unknown"}, "7"},
		{[]string{"X-Plan: paid", "X-Plan: paid"}, "7"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 9"}, "9"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: -1"}, "-1"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 0"}, "0"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 999999999"}, "999999999"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 1000000000"}, "3"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: -2"}, "3"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: +2"}, "3"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 2.0"}, "3"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: ٣"}, "3"},
		{[]string{"X-Plan: paid", "X-Stream-Limit: 2", "X-Stream-Limit: 2"}, "3"},
		{[]string{"X-Plan: unknown", "X-Stream-Limit: x"}, "7"},
	} {
		response := s.do("GET", "/acquire", "", append(c.headers, "X-Request-Id: r1", fmt.Sprint("X-User-Id: u", n))...)
		if got := response.Header.Get(headerLimit); got != c.limit {
			t.Errorf("%q: limit %q, want %s", c.headers, got, c.limit)
		}
	}
	s.warnsOnce("message", "unknown X-Plan")
}

func TestUnlimitedIsCountedAndNeverDenied_A08(t *testing.T) {
	eachStore(t, func(s *running) {
		for n := range 20 {
			response := s.acquire("u1", fmt.Sprint("r", n), "204 held")
			if got := response.Header.Get(headerUsed); got != strconv.Itoa(n+1) {
				s.Errorf("used %q, want %d", got, n+1)
			}
		}
	}, "DEFAULT_LIMIT=-1")
}

func TestShadowModeCountsAndReports(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held")
		response := s.acquire("u1", "r2", "204 uncounted shadow")
		if response.Header.Get(headerUsed) != "1" || response.Header.Get(headerLimit) != "1" || response.Header.Get("Retry-After") != "" {
			s.Errorf("headers %v", response.Header)
		}
		s.event("denied")
	}, "ENFORCE=false")
}

func TestProvenanceIsCutAndHasNoQuery(t *testing.T) {
	long := strings.Repeat("x", 60_000)
	got := provenance(http.Header{
		headerRealIP: {long}, headerOriginalURI: {"/stream/a?token=secret"}, headerUserAgent: {long},
	})
	if len(got.IP) != 64 || got.URI != "/stream/a" || len(got.UserAgent) != 256 {
		t.Errorf("%d bytes of address, URI %q, %d bytes of user agent", len(got.IP), got.URI, len(got.UserAgent))
	}
	if got := provenance(http.Header{headerOriginalURI: {"/" + long}}); len(got.URI) != 512 {
		t.Errorf("%d bytes of URI", len(got.URI))
	}
}

func TestDenialsOfOneUserAreOneLineASecond(t *testing.T) {
	s := start(t, "DEFAULT_LIMIT=0")
	for n := range 50 {
		s.acquire("u1", fmt.Sprint("r", n), "403 denied stream_limit_reached")
	}
	s.acquire("u2", "r1", "403 denied stream_limit_reached")
	eventually(t, "the line of u2 is there", func() bool { return len(s.log.find("user", "u2")) == 1 })
	lines := s.log.find("event", "denied")
	u1 := slices.DeleteFunc(slices.Clone(lines), func(line map[string]any) bool { return line["user"] != "u1" })
	if len(u1) > 10 || len(lines) != len(u1)+1 {
		t.Errorf("%d lines for 50 denials of one user and %d for one of another", len(u1), len(lines)-len(u1))
	}
	eventually(t, "all 50 are told", func() bool {
		told := 0.0
		for _, line := range s.log.find("user", "u1") {
			told += line["count"].(float64)
		}
		return told == 50
	})
}

// leaves sends a request for a slot, waits until it waits for Redis, and hangs up.
func (s *running) leaves(path string, waiting func() bool, user, id string) {
	s.Helper()
	ctx, hangUp := context.WithCancel(s.Context())
	defer hangUp()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set(headerUser, user)
	request.Header.Set(headerRequestID, id)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if response, err := s.client.Do(request); err == nil {
			_ = response.Body.Close()
			s.Error("it was answered before its client left")
		}
	}()
	eventually(s.T, "it waits", waiting)
	hangUp()
	<-gone
}

func TestClientThatLeavesLeavesNoSlot(t *testing.T) {
	s, server := withRedis(t, "DEFAULT_LIMIT=3")
	s.acquire("u1", "long", "204 held")
	server.Pause()
	waiting := func() bool { return server.Waiting("acquire") > 0 }
	s.leaves("/acquire", waiting, "u1", "first")
	server.Unpause()
	eventually(t, "the first acquire of an id is undone", func() bool {
		return server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val() == 1
	})
	s.acquire("u1", "running", "204 held")
	server.Pause()
	s.leaves("/acquire", waiting, "u1", "running")
	server.Unpause()
	s.acquire("u1", "after", "204 held") // the acquire role has answered the one before
	s.heartbeat("u1", "running", "204")
	s.heartbeat("u1", "first", "410 not_held")
}

// leavingStore answers an acquire once its client has left.
type leavingStore struct {
	slotstore.Store
	left chan struct{}
}

func (s leavingStore) Acquire(ctx context.Context, req slotstore.Request) (slotstore.Decision, error) {
	decision, err := s.Store.Acquire(ctx, req)
	<-s.left
	return decision, err
}

func TestHalfClosedClientCountsAsGone(t *testing.T) {
	cfg, left := mustLoad(t), make(chan struct{})
	store := leavingStore{openStore(cfg, slotstore.Events{}), left}
	handler := serviceOn(cfg, store).publicHandler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(left) })
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, "GET /acquire HTTP/1.1\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err = conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 204")) || !bytes.Contains(answer, []byte("X-Stream-Slot: failopen")) {
		t.Errorf("answer %q, %v", answer, err)
	}
	if slots, _ := store.Slots(t.Context(), "u1"); len(slots) != 0 {
		t.Errorf("slots %+v", slots)
	}
}

func TestAbortedReloadsDoNotEatTheCap_A10(t *testing.T) {
	s, server := withRedis(t)
	server.Pause()
	for n := range 5 {
		s.leaves("/acquire", func() bool { return server.Waiting("acquire") > 0 }, "u1", fmt.Sprint("reload", n))
	}
	server.Unpause()
	eventually(t, "the user can stream again at limit 1", func() bool {
		return s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: last").StatusCode == http.StatusNoContent
	})
	if left := server.Client.ZRange(t.Context(), "streamcap:{u1}:slots", 0, -1).Val(); !slices.Equal(left, []string{"last"}) {
		t.Errorf("slots %q", left)
	}
}

func TestAnswerThatCameTooEarlyIsUndone(t *testing.T) {
	for _, policy := range []string{"open", "closed"} {
		t.Run(policy, func(t *testing.T) {
			s, server := withRedis(t, "ACQUIRE_TIMEOUT=300ms", "ON_STORE_FAILURE="+policy, "DEFAULT_LIMIT=2")
			s.acquire("u1", "long", "204 held")
			server.Pause()
			s.acquire("u1", "late", map[string]string{"open": "204 failopen timeout", "closed": "403 denied store_unavailable"}[policy])
			server.Unpause()
			eventually(t, "what was taken too late is given back", func() bool {
				return server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val() == 1
			})
			s.acquire("u1", "next", "204 held")
		})
	}
}

func TestStoreThatIsAwayFailsOpenAndComesBack_F15(t *testing.T) {
	s := start(t, "REDIS_URL=redis://127.0.0.1:1")
	s.acquire("u1", "r1", "204 failopen unavailable")
	s.heartbeat("u1", "r1", "202 unavailable")
	s.wants("202 unavailable", s.do("POST", "/release", "", "X-User-Id: u1", "X-Request-Id: r1"))
	unresolvable := start(t, "REDIS_URL=redis://redis.invalid:6379", "ACQUIRE_TIMEOUT=10s")
	unresolvable.acquire("u1", "r1", "204 failopen unavailable")
}
