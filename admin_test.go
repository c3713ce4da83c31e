package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

const (
	aliceToken = "alice's token, with a colon: and ümläuts"
	bobToken   = "bob's token"
)

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// operators is the setting that names alice and bob.
func operators() string {
	return "ADMIN_USERS=alice:" + hashOf(aliceToken) + ",bob:" + hashOf(bobToken)
}

func basic(name, token string) string {
	request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	request.SetBasicAuth(name, token)
	return "Authorization: " + request.Header.Get("Authorization")
}

// asked sends a request to the admin listener.
func (s *running) asked(method, path, body string, headers ...string) *http.Response {
	s.Helper()
	admin := *s
	admin.url = s.admin
	return admin.do(method, path, body, headers...)
}

// alice asks as the operator alice, and wants this status.
func (s *running) alice(status int, method, path, body string, headers ...string) *http.Response {
	s.Helper()
	headers = append(headers, basic("alice", aliceToken))
	if body != "" && !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Content-Type:") }) {
		headers = append(headers, "Content-Type: application/json")
	}
	response := s.asked(method, path, body, headers...)
	if response.StatusCode != status {
		s.Fatalf("%s %s %.300s: %s %.500s, want %d\n%s", method, path, body, response.Status, bodyOf(response), status, s.log)
	}
	if response.Header.Get("Content-Type") != "application/problem+json" && status >= 400 && strings.Contains(path, "/api/") {
		s.Errorf("%s %s: %d as %q", method, path, status, response.Header.Get("Content-Type"))
	}
	return response
}

// decoded is a JSON answer.
func decoded[T any](s *running, response *http.Response) T {
	s.Helper()
	var value T
	text := bodyOf(response)
	if err := json.Unmarshal([]byte(text), &value); err != nil || response.Header.Get("Content-Type") != "application/json" {
		s.Fatalf("%s (%s): %v", text, response.Header.Get("Content-Type"), err)
	}
	return value
}

type slotsAnswer struct {
	User  string              `json:"user"`
	Limit *int                `json:"limit"`
	Slots []map[string]string `json:"slots"`
}

func (s *running) slotsOf(user string) slotsAnswer {
	s.Helper()
	return decoded[slotsAnswer](s, s.alice(200, "GET", "/admin/api/slots?user="+url.QueryEscape(user), ""))
}

func (s *running) wantsSlots(user string, want int) {
	s.Helper()
	if got := s.slotsOf(user).Slots; len(got) != want {
		s.Fatalf("%q holds %d slots, want %d", user, len(got), want)
	}
}

type releaseAnswer struct {
	Released int      `json:"released"`
	IDs      []string `json:"ids"`
}

type entryAnswer struct {
	Time     string   `json:"time"`
	Operator string   `json:"operator"`
	Peer     string   `json:"peer"`
	User     string   `json:"user"`
	Reason   string   `json:"reason"`
	IDs      []string `json:"ids"`
	Result   string   `json:"result"`
}

func (s *running) trail() []entryAnswer {
	s.Helper()
	return decoded[struct{ Entries []entryAnswer }](s, s.alice(200, "GET", "/admin/api/audit", "")).Entries
}

// audited wants the newest entry to be this, and returns it. Its time is near.
func (s *running) audited(user, reason, result string, ids ...string) entryAnswer {
	s.Helper()
	trail := s.trail()
	if len(trail) == 0 {
		s.Fatal("the trail is empty")
	}
	got := trail[0]
	at, err := time.Parse("2006-01-02T15:04:05.000Z", got.Time)
	if err != nil || time.Since(at).Abs() > time.Minute {
		s.Errorf("audited at %s, %v", got.Time, err)
	}
	slices.Sort(got.IDs)
	if got.User != user || got.Reason != reason || got.Result != result || !slices.Equal(got.IDs, ids) || got.Operator != "alice" || got.Peer != "127.0.0.1" {
		s.Errorf("audited %+v, want %s of %q for %q, %v", got, result, user, reason, ids)
	}
	return got
}

func (s *running) metric(line string) bool {
	s.Helper()
	return strings.Contains("\n"+bodyOf(s.asked("GET", "/metrics", "")), "\n"+line+"\n")
}

// behindSignIn is everything that nobody may see who has not signed in.
var behindSignIn = []string{
	"/admin/", "/admin", "/admin/admin.css", "/admin/admin.js", "/admin/icon.svg", "/admin/nothing",
	"/admin/api/slots?user=u1", "/admin/api/users", "/admin/api/audit", "/admin/api/release", "/admin/api/",
}

func TestAdminIsAbsentWithoutOperators_P06(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"LOG_LEVEL=info", "ADMIN_USERS=", `ADMIN_USERS=""`, "ADMIN_USERS= "} {
		s := start(t, setting)
		for _, path := range behindSignIn {
			for _, method := range []string{"GET", "POST", "PUT"} {
				if response := s.asked(method, path, "", basic("alice", aliceToken)); response.StatusCode != http.StatusNotFound {
					t.Errorf("%s: %s %s: %s", setting, method, path, response.Status)
				}
			}
		}
		for _, path := range []string{"/metrics", "/healthz"} {
			if response := s.asked("GET", path, ""); response.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, response.Status)
			}
		}
	}
}

func TestListenersServeNothingOfEachOther_S03(t *testing.T) {
	t.Parallel()
	s := start(t, operators(), "BACKEND_TOKEN=secret")
	for _, path := range append([]string{"/metrics"}, behindSignIn...) {
		if response := s.do("GET", path, "", basic("alice", aliceToken)); response.StatusCode != http.StatusNotFound {
			t.Errorf("public %s: %s", path, response.Status)
		}
	}
	for _, path := range []string{"/acquire", "/heartbeat", "/release"} {
		if response := s.asked("POST", path, "", basic("alice", aliceToken)); response.StatusCode != http.StatusNotFound {
			t.Errorf("admin %s: %s", path, response.Status)
		}
	}
	for _, path := range []string{"/admin/", "/nothing"} { // a method that the router does not know
		if response := s.asked("PROPFIND", path, ""); response.StatusCode != http.StatusNotFound {
			t.Errorf("admin PROPFIND %s: %s", path, response.Status)
		}
	}
	s.acquire("u1", "r1", "204 held")
	for _, headers := range [][]string{nil, {"Authorization: Bearer wrong"}, {basic("alice", aliceToken)}} {
		headers = append(headers, "X-User-Id: u1", "X-Request-Id: r1")
		if response := s.do("POST", "/release", "", headers...); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("release with %q: %s", headers, response.Status)
		}
	}
	s.wantsSlots("u1", 1)
	for name, address := range map[string]listenAddress{"LISTEN": mustLoad(t).Listen, "ADMIN_LISTEN": mustLoad(t).AdminListen} {
		if host, _, _ := net.SplitHostPort(address.Address); host != "127.0.0.1" {
			t.Errorf("by default %s is %s", name, address)
		}
	}
	if address := mustLoad(t).NginxLogListen; address != (listenAddress{}) {
		t.Errorf("by default NGINX_LOG_LISTEN is %s", address)
	}
}

func TestSignIn_P06(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	for _, path := range behindSignIn {
		for _, method := range []string{"GET", "POST"} {
			response := s.asked(method, path, "")
			if response.StatusCode != http.StatusUnauthorized || response.Header.Get("Www-Authenticate") != `Basic realm="streamcap", charset="UTF-8"` {
				t.Errorf("%s %s signed out: %s %v", method, path, response.Status, response.Header)
			}
		}
	}
	for name, header := range map[string]string{
		"wrong token":     basic("alice", "wrong"),
		"empty token":     basic("alice", ""),
		"bob's token":     basic("alice", bobToken),
		"the hash itself": basic("alice", hashOf(aliceToken)),
		"nobody":          basic("carol", aliceToken),
		"no name":         basic("", aliceToken),
		"another scheme":  "Authorization: Bearer " + aliceToken,
		"nonsense":        "Authorization: Basic !",
	} {
		if response := s.asked("GET", "/admin/", "", header); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", name, response.Status)
		}
	}
	for _, header := range []string{basic("alice", aliceToken), basic("bob", bobToken)} {
		if response := s.asked("GET", "/admin/", "", header); response.StatusCode != http.StatusOK {
			t.Errorf("right: %s", response.Status)
		}
	}
}

func TestBodyThatNeverComesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	var asking sync.WaitGroup
	for _, method := range []string{"GET", "POST", "PUT"} {
		for _, path := range append([]string{"/metrics", "/healthz", "/nothing"}, behindSignIn...) {
			for _, header := range []string{"Accept: */*", basic("alice", "wrong"), basic("alice", aliceToken)} {
				for _, announced := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
					asking.Go(func() {
						conn, err := net.Dial("tcp", strings.TrimPrefix(s.admin, "http://"))
						if err != nil {
							t.Error(err)
							return
						}
						defer conn.Close()
						_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n%s\r\n\r\n", method, path, header, announced)
						_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout / 2))
						if _, err := conn.Read(make([]byte, 1)); err != nil {
							t.Errorf("%s %s, %s, %s: %v", method, path, header, announced, err)
						}
					})
				}
			}
		}
	}
	asking.Wait()
}

func TestWrongSignInsAreThrottledAndLogged_P06(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	statuses := make(map[int]int)
	for n := range 100 {
		response := s.asked("GET", "/admin/", "", basic("alice", fmt.Sprint("guess", n)), fmt.Sprint("X-Forwarded-For: 10.0.0.", n), "Forwarded: for=10.1.1.1")
		if statuses[response.StatusCode]++; response.StatusCode == http.StatusTooManyRequests {
			var seconds int
			if _, err := fmt.Sscan(response.Header.Get("Retry-After"), &seconds); err != nil || seconds < 1 || seconds > 60 {
				t.Fatalf("Retry-After: %q", response.Header.Get("Retry-After"))
			}
		}
	}
	if want := map[int]int{401: 10, 429: 90}; !maps.Equal(statuses, want) {
		t.Errorf("statuses %v, want %v", statuses, want)
	}
	s.alice(200, "GET", "/admin/", "")
	if response := s.asked("GET", "/admin/", ""); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a browser that is about to ask: %s", response.Status)
	}
	s.asked("GET", "/admin/", "", basic("the token in the wrong field", "x"))
	eventually(t, "a log line", func() bool { return len(s.log.find("message", "a wrong sign-in")) > 0 })
	if line := s.log.find("message", "a wrong sign-in")[0]; line["peer"] != "127.0.0.1" || line["operator"] != "alice" {
		t.Errorf("logged %v", line)
	}
	if strings.Contains(s.log.String(), "guess") || strings.Contains(s.log.String(), "wrong field") {
		t.Errorf("a secret is in the log:\n%s", s.log)
	}
}

func TestWrongSignInsAreForgottenAndBounded_P06(t *testing.T) {
	t.Parallel()
	var wrong wrongSignIns
	now := time.Now()
	for n := range wrongMost {
		if wait := wrong.note("a", now.Add(time.Duration(n)*time.Second)); wait != 0 {
			t.Fatalf("wrong sign-in %d waits %s", n, wait)
		}
	}
	now = now.Add(20 * time.Second)
	for range 3 { // those that are throttled don't make it longer
		if wait := wrong.note("a", now); wait != 40*time.Second {
			t.Errorf("the next waits %s", wait)
		}
	}
	if wait := wrong.note("b", now); wait != 0 {
		t.Errorf("another peer waits %s", wait)
	}
	if wait := wrong.note("a", now.Add(40*time.Second)); wait != 0 {
		t.Errorf("a minute after the first: %s", wait)
	}
	if wait := wrong.note("a", now.Add(40*time.Second)); wait != time.Second {
		t.Errorf("and the one behind it: %s, want 1s", wait)
	}
	for n := range 5 * wrongPeers {
		wrong.note(fmt.Sprint(n), now)
	}
	if len(wrong.peers) > wrongPeers+1 {
		t.Errorf("%d peers are remembered", len(wrong.peers))
	}
	if wait := wrong.note("one more", now); wait == 0 {
		t.Error("beyond the bound, peers don't share a count")
	}
	wrong.note("later", now.Add(3*time.Minute))
	if len(wrong.peers) > 2 {
		t.Errorf("%d peers are remembered after their minute", len(wrong.peers))
	}
	for peer, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8::1:2:3:4": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "unix": "unix",
	} {
		if got := network(peer); got != want {
			t.Errorf("%s counts as %s, want %s", peer, got, want)
		}
	}
}

func TestSignInOverASocketHasAPeer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "admin.sock")
	s := start(t, operators(), "ADMIN_LISTEN=unix:"+socket)
	s.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	s.admin = "http://streamcap"
	s.alice(200, "POST", "/admin/api/release", `{"user":"u1","reason":"x"}`)
	if trail := s.trail(); len(trail) != 1 || trail[0].Peer != "unix" {
		t.Errorf("trail %+v", trail)
	}
}

var slotFields = []string{"expires", "id", "ip", "last_seen", "started", "uri", "user_agent"}

func TestSlotsOfAUser(t *testing.T) {
	t.Parallel()
	eachStore(t, func(s *running) {
		if got := bodyOf(s.alice(200, "GET", "/admin/api/slots?user=u1", "")); got != `{"user":"u1","limit":null,"slots":[]}` {
			s.Errorf("nothing held: %s", got)
		}
		before := time.Now().Truncate(time.Millisecond)
		s.acquire("u1", "r1", "204 held", "X-Stream-Limit: 5", "X-Real-IP: 10.1.2.3", "X-Original-URI: /v1/chat?secret=1", "User-Agent: curl \"8\"")
		time.Sleep(5 * time.Millisecond)
		s.acquire("u1", "r2", "204 held", "X-Stream-Limit: 7")
		time.Sleep(5 * time.Millisecond)
		s.acquire("u1", "r3", "204 held", "X-Stream-Limit: -1")
		time.Sleep(5 * time.Millisecond)
		s.heartbeat("u1", "r1", "204")
		s.acquire("u2", "r1", "204 held")
		got := s.slotsOf(" u1 ")
		if got.User != "u1" || got.Limit == nil || *got.Limit != -1 || len(got.Slots) != 3 {
			s.Fatalf("slots %+v", got)
		}
		byID := make(map[string]map[string]string)
		for _, slot := range got.Slots {
			if fields := slices.Sorted(maps.Keys(slot)); !slices.Equal(fields, slotFields) {
				s.Errorf("fields %q", fields)
			}
			byID[slot["id"]] = slot
			at := func(field string) time.Time {
				parsed, err := time.Parse("2006-01-02T15:04:05.000Z", slot[field])
				if err != nil {
					s.Error(err)
				}
				return parsed
			}
			const slack = 5 * time.Second
			started, seen, expires := at("started"), at("last_seen"), at("expires")
			if started.Before(before.Add(-2*time.Millisecond)) || seen.Before(started) || time.Until(started) > 0 || seen.Sub(before) > slack ||
				expires.Sub(seen) < 120*time.Second-2*time.Millisecond || expires.Sub(before) > 120*time.Second+slack {
				s.Errorf("started %s, last seen %s, expires %s", started, seen, expires)
			}
			if heard := seen.Sub(started) > 2*time.Millisecond; heard != (slot["id"] == "r1") {
				s.Errorf("%s was last seen %s after its start", slot["id"], seen.Sub(started))
			}
		}
		if r1 := byID["r1"]; r1["ip"] != "10.1.2.3" || r1["uri"] != "/v1/chat" || r1["user_agent"] != `curl "8"` || byID["r2"]["ip"] != "" {
			s.Errorf("slots %v", byID)
		}
		for _, query := range []string{"", "?user=", "?user=-", "?user=%0a", "?user=a&user=b", "?user=%zz", "?user=" + strings.Repeat("x", 257)} {
			s.alice(400, "GET", "/admin/api/slots"+query, "")
		}
	}, operators())
}

func TestTimesAreOnOurClock(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t, operators())
	server.Advance(-150 * time.Second)
	s.acquire("u1", "r1", "204 held")
	server.Advance(300 * time.Second)
	s.acquire("u2", "r1", "204 held")
	at, err := time.Parse(timeLayout, s.slotsOf("u2").Slots[0]["expires"])
	if left := time.Until(at); err != nil || left > 121*time.Second || left < 60*time.Second {
		t.Errorf("expires in %s, %v", left, err)
	}
}

func TestLastSeen(t *testing.T) {
	t.Parallel()
	now, ttl := time.Now(), 120*time.Second
	for _, c := range []struct {
		name           string
		age, remaining time.Duration
		want           time.Duration // before now
	}{
		{"a heartbeat 20 s ago", time.Hour, 100 * time.Second, 20 * time.Second},
		{"none yet, under a shorter initial TTL", 10 * time.Second, 20 * time.Second, 10 * time.Second},
		{"none yet, under a longer initial TTL", 10 * time.Second, 300 * time.Second, 0},
		{"just now", time.Hour, 120 * time.Second, 0},
	} {
		got := seenAt(slotstore.Slot{Age: c.age, Remaining: c.remaining}, now, ttl)
		if ago := now.Sub(got.lastSeen); ago != c.want {
			t.Errorf("%s: last seen %s ago, want %s", c.name, ago, c.want)
		}
	}
	slots := []slotstore.Slot{{Age: time.Minute, Limit: 5}, {Age: time.Second, Limit: 3}, {Age: time.Hour, Limit: 9}, {}}
	if limit, known := limitOf(slots); !known || limit != 3 {
		t.Errorf("limit %d, %t", limit, known)
	}
	if _, known := limitOf(slots[3:]); known {
		t.Error("a slot whose details are lost has a limit")
	}
}

func TestExpiredSlotsAreNotShown_E04(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t, operators())
	server.Freeze()
	for _, id := range []string{"r1", "r2", "r3"} {
		s.acquire("u1", id, "204 held", "X-Stream-Limit: 9")
	}
	s.acquire("u2", "r1", "204 held", "X-Stream-Limit: 9")
	server.Advance(60 * time.Second)
	s.acquire("u2", "longer", "204 held", "X-Stream-Limit: 9")
	s.wantsSlots("u1", 3)
	server.Advance(60*time.Second - time.Millisecond)
	s.wantsSlots("u1", 3)
	server.Advance(time.Millisecond)
	s.wantsSlots("u1", 0)
	s.wantsSlots("u2", 1)
	if page := bodyOf(s.alice(200, "GET", "/admin/?user=u1&wait=all", "")); !strings.Contains(page, "<strong>0</strong> live slots") {
		t.Errorf("the page:\n%s", page)
	}
	if got := bodyOf(s.alice(200, "GET", "/admin/api/users", "")); got != `{"users":[{"user":"u2","slots":1}],"partial":false}` {
		t.Errorf("users %s", got)
	}
	if card := server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val(); card != 3 {
		t.Errorf("looking has pruned: %d members are left", card)
	}
}

func TestUsersWithTheMostSlots(t *testing.T) {
	t.Parallel()
	eachStore(t, func(s *running) {
		if got := bodyOf(s.alice(200, "GET", "/admin/api/users", "")); got != `{"users":[],"partial":false}` {
			s.Errorf("nobody: %s", got)
		}
		for user, slots := range map[string]int{"few": 1, "many": 4, "so\xffme": 2, `"quoted"`: 3} {
			for n := range slots {
				s.acquire(user, fmt.Sprint("r", n), "204 held", "X-Stream-Limit: -1")
			}
		}
		want := `{"users":[{"user":"many","slots":4},{"user":"\"quoted\"","slots":3},` +
			"{\"user\":\"so\xffme\",\"user_escaped\":\"so%FFme\",\"slots\":2}" + `,{"user":"few","slots":1}],"partial":false}`
		if got := bodyOf(s.alice(200, "GET", "/admin/api/users", "")); got != want {
			s.Errorf("got  %s\nwant %s", got, want)
		}
		if got := bodyOf(s.alice(200, "GET", "/admin/api/users?min=4", "")); got != `{"users":[{"user":"many","slots":4}],"partial":false}` {
			s.Errorf("at least 4: %s", got)
		}
		for _, least := range []string{"0", "-1", "x", "1.5", "%201", "%zz", "2&min=3"} {
			s.alice(400, "GET", "/admin/api/users?min="+least, "")
		}
	}, operators())
}

func TestReleaseOneAndAll(t *testing.T) {
	t.Parallel()
	eachStore(t, func(s *running) {
		for _, id := range []string{"r1", "r2", "r3"} {
			s.acquire("u1", id, "204 held", "X-Stream-Limit: 3")
		}
		s.acquire("u2", "r1", "204 held")
		s.acquire("u1", "r4", "403 denied stream_limit_reached", "X-Stream-Limit: 3")

		if got := bodyOf(s.alice(200, "POST", "/admin/api/release", `{"user":"u1","id":"r2","reason":" one \n"}`)); got != `{"released":1,"ids":["r2"]}` {
			s.Errorf("one: %s", got)
		}
		s.audited("u1", "one", "released", "r2")
		s.wantsSlots("u1", 2)
		if got := bodyOf(s.alice(200, "POST", "/admin/api/release", `{"user":"u1","id":"r2","reason":"again"}`)); got != `{"released":0,"ids":[]}` {
			s.Errorf("again: %s", got)
		}
		s.audited("u1", "again", "released")
		got := decoded[releaseAnswer](s, s.alice(200, "POST", "/admin/api/release", `{"reason":"all","user":" u1 "}`))
		slices.Sort(got.IDs)
		if got.Released != 2 || !slices.Equal(got.IDs, []string{"r1", "r3"}) {
			s.Errorf("all: %+v", got)
		}
		s.audited("u1", "all", "released", "r1", "r3")
		s.wantsSlots("u1", 0)
		s.wantsSlots("u2", 1)
		s.acquire("u1", "r4", "204 held", "X-Stream-Limit: 3")

		line := s.event("slots_released")
		if line["user"] != "u1" || line["operator"] != "alice" || line["reason"] != "one" || line["released"] != 1.0 || line["level"] != "info" {
			s.Errorf("logged %v", line)
		}
		if !s.metric(`streamcap_release_total{result="released",source="admin"} 3`) || !s.metric(`streamcap_release_total{result="absent",source="admin"} 1`) {
			s.Errorf("metrics:\n%s", bodyOf(s.asked("GET", "/metrics", "")))
		}
	}, operators())
}

func TestReleaseAllOfMoreThanAListHolds(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t, operators())
	var members []redis.Z
	for n := range 2500 {
		members = append(members, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: fmt.Sprint("r", n)})
	}
	if err := server.Client.ZAdd(t.Context(), "streamcap:{u1}:slots", members...).Err(); err != nil {
		t.Fatal(err)
	}
	if page := bodyOf(s.alice(200, "GET", "/admin/?user=u1&wait=slots", "")); !strings.Contains(page, "There may be more") {
		t.Error("the page takes the first 1,000 for all")
	}
	got := decoded[releaseAnswer](s, s.alice(200, "POST", "/admin/api/release", `{"user":"u1","reason":"all"}`))
	if slices.Sort(got.IDs); got.Released != 2500 || len(slices.Compact(got.IDs)) != 2500 {
		t.Errorf("released %d, %d ids", got.Released, len(got.IDs))
	}
	if got := s.trail()[0]; len(got.IDs) != 2500 {
		t.Errorf("%d ids are audited", len(got.IDs))
	}
	s.wantsSlots("u1", 0)
}

func TestReleaseAllWhileHeartbeatsGoOn_P04(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t, operators())
	ids := []string{"r1", "r2", "r3"}
	for _, id := range ids {
		s.acquire("u1", id, "204 held", "X-Stream-Limit: 3")
	}
	var beating sync.WaitGroup
	released := make(chan struct{})
	for _, id := range ids {
		beating.Go(func() {
			beat := func() *http.Response { return s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: "+id) }
			for going := true; going; {
				select {
				case <-released:
					going = false
				default:
					beat()
				}
			}
			for range 100 {
				if got := beat(); got.StatusCode != http.StatusGone || got.Header.Get(headerReason) != "not_held" {
					t.Errorf("a heartbeat after the release: %s %v", got.Status, got.Header)
					return
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	got := decoded[releaseAnswer](s, s.alice(200, "POST", "/admin/api/release", `{"user":"u1","reason":"leak"}`))
	close(released)
	if got.Released != 3 {
		t.Errorf("released %+v", got)
	}
	beating.Wait()
	if card := server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val(); card != 0 {
		t.Errorf("%d slots came back", card)
	}
	s.acquire("u1", "new", "204 held", "X-Stream-Limit: 1")
	s.heartbeat("u1", "new", "204")
}

func TestReleasesThatAreRefused(t *testing.T) {
	t.Parallel()
	s, _ := withRedis(t, operators())
	s.acquire("u1", "r1", "204 held")
	long := strings.Repeat("x", 501)
	for _, c := range []struct {
		name, body   string
		status       int
		user, reason string // as audited
		headers      []string
	}{
		{"no body", "", 415, "", "", nil},
		{"not JSON", "{", 400, "", "", nil},
		{"two values", `{"user":"u1","reason":"x"}{}`, 400, "", "", nil},
		{"a list", `[{"user":"u1","reason":"x"}]`, 400, "", "", nil},
		{"no user", `{"reason":"x"}`, 400, "", "x", nil},
		{"an empty user", `{"user":"-","reason":"x"}`, 400, "-", "x", nil},
		{"a user with control characters", `{"user":"a\u0001","reason":"x"}`, 400, "a\x01", "x", nil},
		{"no reason", `{"user":"u1"}`, 400, "u1", "", nil},
		{"a blank reason", `{"user":"u1","reason":" \n\u00a0"}`, 400, "u1", "", nil},
		{"a reason that nobody sees", `{"user":"u1","reason":"\u200b\u2060"}`, 400, "u1", "\u200b\u2060", nil},
		{"a long reason", `{"user":"u1","reason":"` + long + `"}`, 400, "u1", long, nil},
		{"an empty id", `{"user":"u1","reason":"x","id":""}`, 400, "u1", "x", nil},
		{"id null", `{"user":"u1","reason":"x","id":null}`, 400, "u1", "x", nil},
		{"an id that is none", `{"user":"u1","reason":"x","id":"a b"}`, 400, "u1", "x", nil},
		{"an id that comes twice", `{"user":"u1","id":"r9","reason":"x","id":"r1"}`, 400, "u1", "x", nil},
		{"a misspelt id", `{"user":"u1","reason":"x","request_id":"r9"}`, 400, "u1", "x", nil},
		{"half a pair", `{"user":"\ud800","reason":"x"}`, 400, "", "", nil},
		{"a user that is no string", `{"user":["u1"],"reason":"x"}`, 400, "", "", nil},
		{"too large", `{"user":"u1","reason":"` + strings.Repeat("x", 70_000) + `"}`, 413, "", "", nil},
		{"a form", `user=u1&reason=x`, 415, "", "", []string{"Content-Type: application/x-www-form-urlencoded"}},
		{"plain text", `{"user":"u1","reason":"x"}`, 415, "", "", []string{"Content-Type: text/plain"}},
	} {
		response := s.alice(c.status, "POST", "/admin/api/release", c.body, c.headers...)
		if response.StatusCode == http.StatusUnsupportedMediaType && !strings.Contains(bodyOf(response), "application/json") {
			t.Errorf("%s: %s", c.name, bodyOf(response))
		}
		before := t.Failed()
		if s.audited(c.user, c.reason, "refused"); t.Failed() && !before {
			t.Errorf("that was %s", c.name)
		}
	}
	s.alice(400, "POST", "/admin/api/release?user=u2", `{"user":"u1","reason":"x"}`)
	s.alice(400, "POST", "/admin/api/release?user=u1&user=u1", `{"reason":"x"}`)
	s.alice(400, "POST", "/admin/api/release?user=%zz", `{"reason":"x"}`)
	s.wantsSlots("u1", 1)
	s.alice(200, "POST", "/admin/api/release", `{"user":"u1","reason":"`+strings.Repeat("ü", 500)+`"}`, "Content-Type: Application/JSON; charset=utf-8")
	s.wantsSlots("u1", 0)
}

func TestChangesArePostOnly_P01(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	s.acquire("u1", "r1", "204 held")
	for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"} {
		response := s.alice(405, method, "/admin/api/release?user=u1&reason=x", "", "Content-Type: application/json")
		if response.Header.Get("Allow") != "POST" {
			t.Errorf("%s: Allow: %q", method, response.Header.Get("Allow"))
		}
	}
	for _, path := range []string{"/admin/", "/admin/admin.js", "/admin/api/slots?user=u1", "/admin/api/users", "/admin/api/audit"} {
		for _, method := range []string{"POST", "PUT", "DELETE"} {
			if response := s.alice(405, method, path, ""); response.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: Allow: %q", method, path, response.Header.Get("Allow"))
			}
		}
		s.alice(200, "HEAD", path, "")
	}
	s.wantsSlots("u1", 1)
	if trail := s.trail(); len(trail) != 0 {
		t.Errorf("audited %+v", trail)
	}
}

func TestOtherSitesAreRefused_P01(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	s.acquire("u1", "r1", "204 held")
	token := "X-Page-Token: " + s.pageToken("alice", aliceToken)
	const body = `{"user":"u1","reason":"csrf"}`
	for _, headers := range [][]string{
		{"Origin: https://evil.example"},
		{"Origin: null"},
		{"Sec-Fetch-Site: cross-site"},
		{"Sec-Fetch-Site: same-site"},
		{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example", token},
		{"Origin: https://evil.example", "X-Page-Token: " + s.pageToken("bob", bobToken)},
		{"Origin: https://evil.example", "X-Page-Token: "},
		{"Origin: https://evil.example", "X-Forwarded-Host: evil.example"},
		{"Origin: https://evil.example", "Content-Type: text/plain"},
	} {
		s.alice(403, "POST", "/admin/api/release", body, headers...)
		if user := s.trail()[0].User; user != "u1" && headers[len(headers)-1] != "Content-Type: text/plain" {
			t.Errorf("%q: the trail names %q", headers, user)
		}
	}
	s.wantsSlots("u1", 1)
	if trail := s.trail(); len(trail) != 9 || trail[8].Result != "refused" || trail[8].Reason != "csrf" {
		t.Errorf("trail %+v", trail)
	}
	for _, headers := range [][]string{
		nil, // curl
		{"Sec-Fetch-Site: same-origin", "Origin: https://ops.example"}, // behind a proxy that changes Host
		{"Sec-Fetch-Site: none"},
		{"Origin: http://ops.example", "Host: ops.example"},
		{"Origin: http://ops.example", token}, // over plain http, behind a proxy that changes Host
	} {
		s.alice(200, "POST", "/admin/api/release", body, headers...)
	}
	s.wantsSlots("u1", 0)
}

// pageToken is the token in the page of an operator.
func (s *running) pageToken(name, token string) string {
	s.Helper()
	page := bodyOf(s.asked("GET", "/admin/", "", basic(name, token)))
	match := regexp.MustCompile(`data-token="([0-9a-f]{64})"`).FindStringSubmatch(page)
	if match == nil {
		s.Fatalf("no token in\n%s", page)
	}
	return match[1]
}

func TestHeadersThatProtect_P07(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
		"X-Content-Type-Options":  "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	}
	for _, path := range behindSignIn {
		for _, headers := range [][]string{nil, {basic("alice", aliceToken)}} {
			response := s.asked("GET", path, "", headers...)
			for name, value := range want {
				if got := response.Header.Get(name); got != value {
					t.Errorf("%s (%s): %s: %q", path, response.Status, name, got)
				}
			}
		}
	}
	for path, mediaType := range map[string]string{
		"/admin/": "text/html; charset=utf-8", "/admin/admin.css": "text/css; charset=utf-8",
		"/admin/admin.js": "text/javascript; charset=utf-8", "/admin/icon.svg": "image/svg+xml; charset=utf-8",
	} {
		if got := s.alice(200, "GET", path, "").Header.Get("Content-Type"); got != mediaType {
			t.Errorf("%s is %q", path, got)
		}
	}
}

// hostileUsers is what a user can be called.
var hostileUsers = []string{
	`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, `'-alert(1)-'`, `{{.Token}}`, `javascript:alert(1)`,
	`</title><script>alert(1)</script>`, `a&b=c`, `a+b`, `a b`, `100%`, `%41`, `../../etc`, `#?;/\`, "ümläut 名前", "byte\xff\xfe", "\xc3\x28",
	"right\u202eto-left", "zero\u200bwidth", strings.Repeat("\xf0", 256), `"`, `\`, `<!--`,
}

func TestWhateverAUserIsCalledIsText_P07_S09(t *testing.T) {
	t.Parallel()
	eachStore(t, func(s *running) {
		link := regexp.MustCompile(`<a href="(\?user=[^"]*)"`)
		for _, user := range hostileUsers {
			s.acquire(user, "r1", "204 held", "X-Real-IP: "+user, "X-Original-URI: "+user, "User-Agent: "+user)
			s.alice(400, "POST", "/admin/api/release?user="+url.QueryEscape(user), `{"reason":""}`)
		}
		page := bodyOf(s.alice(200, "GET", "/admin/?wait=all", ""))
		links := make(map[string]bool)
		for _, match := range link.FindAllStringSubmatch(page, -1) {
			links[match[1]] = true
		}
		if len(links) != len(hostileUsers) {
			s.Errorf("%d users are linked, want %d", len(links), len(hostileUsers))
		}
		for path := range links {
			users := bodyOf(s.alice(200, "GET", "/admin/"+path+"&wait=slots", ""))
			if !strings.Contains(users, "<strong>1</strong>") {
				s.Errorf("the link %s leads to nobody", path)
			}
			page += users
		}
		for _, harm := range []string{"<img src=x", "<script>", "onerror=alert(1)>", "</title><", "<!--", "\u202e", "\u200b"} {
			if strings.Contains(page, harm) {
				s.Errorf("a page holds %q", harm)
			}
		}
		for _, readable := range []string{"&lt;img src=x onerror=alert(1)&gt;", `byte\xff\xfe`, `right\u{202e}to-left`, `zero\u{200b}width`, "ümläut 名前"} {
			if !strings.Contains(page, readable) {
				s.Errorf("no page shows %q", readable)
			}
		}
		if strings.ContainsRune(page, '\ufffd') {
			s.Error("a byte is lost")
		}
		for i, user := range hostileUsers { // bytes in the body, or percent-encoded in the query
			path, body := "/admin/api/release?user="+url.QueryEscape(user), `{"reason":"x"}`
			if i%2 == 0 {
				path, body = "/admin/api/release", string(append(appendString([]byte(`{"user":`), user), `,"reason":"x"}`...))
			}
			if got := bodyOf(s.alice(200, "POST", path, body)); got != `{"released":1,"ids":["r1"]}` {
				s.Errorf("release of %q: %s", user, got)
			}
			if entries := bodyOf(s.alice(200, "GET", "/admin/api/audit", "")); !strings.Contains(entries, string(appendString([]byte(`"user":`), user))) {
				s.Errorf("the trail has lost %q", user)
			}
		}
	}, operators())
}

func TestPageNamesNoHostAndNoAbsolutePath(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	s.acquire("u1", "r1", "204 held")
	s.alice(200, "POST", "/admin/api/release", `{"user":"u1","reason":"x"}`)
	s.acquire("u1", "r1", "204 held")
	page := bodyOf(s.alice(200, "GET", "/admin/?user=u1&wait=all", ""))
	found := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(found) < 6 {
		t.Errorf("links %q", found)
	}
	for _, match := range found {
		if target := match[1]; strings.HasPrefix(target, "/") || strings.Contains(target, "//") {
			t.Errorf("the page links %q", target)
		}
	}
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if response := s.alice(308, "GET", "/admin?user=a%26b", ""); response.Header.Get("Location") != "admin/?user=a%26b" {
		t.Errorf("Location: %q", response.Header.Get("Location"))
	}
}

func TestPageCanBeReadWithoutJavaScript(t *testing.T) {
	t.Parallel()
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held", "X-Stream-Limit: 2", "X-Real-IP: 10.1.2.3", "X-Original-URI: /v1/chat", "User-Agent: Firefox/1")
		s.acquire("u1", "r2", "204 held", "X-Stream-Limit: 2")
		s.acquire("u2", "r1", "204 held", "X-Stream-Limit: -1")
		s.alice(200, "POST", "/admin/api/release", `{"user":"u3","reason":"a reason to read"}`)
		page := bodyOf(s.alice(200, "GET", "/admin/?user=u1&wait=all", ""))
		for _, text := range []string{
			`<bdi class="user">u1</bdi>`, "<strong>2</strong> live slots, limit 2", "at the limit", "10.1.2.3", "/v1/chat", "Firefox/1", ">r1</code>", ">r2</code>",
			"a reason to read", `<a href="?user=u2"><bdi>u2</bdi></a>`, "<dd>alice</dd>", "<code>streamcap</code>", "<code>" + buildVersion() + "</code>",
		} {
			if !strings.Contains(page, text) {
				s.Errorf("the page lacks %q", text)
			}
		}
		if page = bodyOf(s.alice(200, "GET", "/admin/?user=u2&wait=all", "")); !strings.Contains(page, "<strong>1</strong> live slot, no limit") {
			s.Errorf("unlimited:\n%s", page)
		}
		if page = bodyOf(s.alice(400, "GET", "/admin/?user=%01&wait=all", "")); !strings.Contains(page, "That is no user: the user holds a control character.") {
			s.Errorf("no user:\n%s", page)
		}
		if page = bodyOf(s.alice(400, "GET", "/admin/?user=%zz&wait=all", "")); !strings.Contains(page, "That is no user: the query is not percent-encoded") {
			s.Errorf("no query:\n%s", page)
		}
	}, operators())
}

func TestPageSaysWhatItCannotSee(t *testing.T) {
	t.Parallel()
	s := start(t, operators(), "ENFORCE=false")
	if page := bodyOf(s.alice(200, "GET", "/admin/", "")); !strings.Contains(page, "Shadow mode") || strings.Contains(page, "by itself while the store was away") {
		t.Errorf("the page:\n%s", page)
	}
	server := redistest.Start(t)
	s = start(t, operators(), "ON_STORE_FAILURE=local", "REDIS_URL=unix://"+server.Socket)
	if page := bodyOf(s.alice(200, "GET", "/admin/", "")); strings.Contains(page, "Shadow mode") || !strings.Contains(page, "by itself while the store was away") {
		t.Errorf("the page:\n%s", page)
	}
}

// hurriedStore has no time to look at everybody.
type hurriedStore struct{ slotstore.Store }

func (hurriedStore) Users(context.Context, int) (slotstore.Users, error) {
	return slotstore.Users{Users: []slotstore.UserSlots{{User: "u1", Slots: 2}}, Partial: true}, nil
}

func TestPartialListOfUsersIsMarked_P03(t *testing.T) {
	t.Parallel()
	cfg, err := loadConfig([]string{"STREAMCAP_" + operators()})
	if err != nil {
		t.Fatal(err)
	}
	handler := serviceOn(cfg, hurriedStore{openStore(cfg, slotstore.Events{})}).adminHandler()
	for path, want := range map[string]string{
		"/admin/api/users":      `{"users":[{"user":"u1","slots":2}],"partial":true}`,
		"/admin/?wait=" + "all": "Partial: there was not enough time",
	} {
		request, recorder := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
		request.SetBasicAuth("alice", aliceToken)
		if handler.ServeHTTP(recorder, request); !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("%s: %s", path, recorder.Body)
		}
	}
}

func TestStoreAwayIsSaid(t *testing.T) {
	t.Parallel()
	s, server := impatientService(t, operators(), "ADMIN_TIMEOUT=300ms")
	s.acquire("u1", "r1", "204 held")
	if page := bodyOf(s.alice(200, "GET", "/admin/?wait=all", "")); strings.Contains(page, "in trouble") {
		t.Errorf("all is well:\n%s", page)
	}
	began := time.Now()
	server.Kill()
	for _, path := range []string{"/admin/api/slots?user=u1", "/admin/api/users"} {
		if body := bodyOf(s.alice(503, "GET", path, "")); !strings.Contains(body, `"status":503`) || !strings.Contains(body, "the store can't answer (") {
			t.Errorf("%s: %s", path, body)
		}
	}
	s.alice(503, "POST", "/admin/api/release", `{"user":"u1","reason":"all"}`)
	s.audited("u1", "all", "failed")
	s.alice(503, "POST", "/admin/api/release", `{"user":"u1","id":"r1","reason":"one"}`)
	s.audited("u1", "one", "failed")
	s.alice(400, "POST", "/admin/api/release", `{"user":"u1"}`)
	s.audited("u1", "", "refused")
	if !s.metric(`streamcap_release_total{result="unrecorded",source="admin"} 1`) {
		t.Error("the release by id is not counted")
	}
	page := bodyOf(s.alice(200, "GET", "/admin/?user=u1&wait=all", ""))
	since := regexp.MustCompile(`<strong>admin</strong>: [^<]*\n<span class="cause">Since <time datetime="([^"]*)">`).FindStringSubmatch(page)
	if since == nil {
		t.Fatalf("no banner:\n%s", page)
	}
	if at, err := time.Parse(timeLayout, since[1]); err != nil || at.Before(began.Add(-time.Millisecond)) || at.After(time.Now()) {
		t.Errorf("since %s, %v", since[1], err)
	}
	for _, text := range []string{"The store is in trouble", "<code>unavailable: ", "is Redis up", "Can’t be shown: the store can’t answer (<code>"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
	server.Restart()
	eventually(t, "the page is well again", func() bool {
		return !strings.Contains(bodyOf(s.alice(200, "GET", "/admin/", "")), "in trouble")
	})
	s.wantsSlots("u1", 0)
}

// Half a minute is longer than every budget, and than the breakers, the probes and the pools take to settle.
func TestNobodyWaitsForARedisThatHangsForHalfAMinute(t *testing.T) {
	t.Parallel()
	const hang, promised, budget = 30 * time.Second, 200 * time.Millisecond, 2 * time.Second
	s, server := impatientService(t, operators())
	s.acquire("u1", "r1", "204 held")
	paths := []string{"/metrics", "/healthz", "/admin/", "/admin/?user=u1", "/admin/api/audit"}
	// A machine that is busy holds up some answers, and never all of them. Who waits for the store does so for a budget, again
	// and again.
	best, waits := make(map[string]time.Duration), make(map[string]int)
	server.Signal(syscall.SIGSTOP)
	for stopped := time.Now(); time.Since(stopped) < hang; time.Sleep(100 * time.Millisecond) {
		for _, path := range paths {
			asked := time.Now()
			answer := bodyOf(s.alice(200, "GET", path, ""))
			took := time.Since(asked)
			if took >= budget {
				waits[path]++
			}
			if before, ok := best[path]; !ok || took < before {
				best[path] = took
			}
			if strings.HasPrefix(path, "/admin/?") {
				for _, part := range []string{"slots", "users"} {
					_, shown, _ := strings.Cut(answer, `<section id="`+part+`"`)
					shown, _, _ = strings.Cut(shown, "</section>")
					if !strings.Contains(shown, "The store has not answered yet") && !strings.Contains(shown, "Can’t be shown") {
						t.Fatalf("the page does not say that it can't show %s:\n%s", part, answer)
					}
				}
			}
		}
	}
	t.Logf("the fastest answers: %v", best)
	for path, took := range best {
		if took > promised || waits[path] > 2 {
			t.Errorf("%s takes %s at the best, and has waited for the store %d times", path, took, waits[path])
		}
	}
	server.Signal(syscall.SIGCONT)
	eventually(t, "the page shows all again", func() bool {
		return strings.Contains(bodyOf(s.alice(200, "GET", "/admin/?user=u1", "")), "<strong>1</strong> live slot, limit 1")
	})
}

func TestPagesOfAFarStoreDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	s, server := impatientService(t, operators(), "ADMIN_TIMEOUT=10s")
	server.Signal(syscall.SIGSTOP) // which answers nothing, not even a look at other keys
	for range 10 {
		if page := bodyOf(s.alice(200, "GET", "/admin/?user=u1", "")); !strings.Contains(page, "The store has not answered yet") {
			t.Fatalf("the page:\n%s", page)
		}
	}
	if report, _ := s.healthz(); report.Roles["admin"] != (roleReport{"closed", ""}) {
		t.Errorf("healthz %+v", report)
	}
	server.Signal(syscall.SIGCONT)
	s.wantsSlots("u1", 0)
}

var foreignKeys = flag.Int("foreign-keys", 200_000, "how many keys of others TestUsersAmongForeignKeys_P03 puts into Redis")

// loadForeign puts keys of others into a Redis, some of them beside our own names.
func loadForeign(t *testing.T, server *redistest.Server, keys int) {
	t.Helper()
	const step = 20_000
	const script = "for n = ARGV[1], ARGV[2] do redis.call('SET', string.format('session:%08d:slots', n), 'x') end"
	for from := 0; from < keys; from += step {
		if err := server.Client.Eval(t.Context(), script, nil, from, min(keys, from+step)-1).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	if size := server.Client.DBSize(t.Context()).Val(); size < int64(keys) {
		t.Fatalf("Redis has %d keys", size)
	}
}

// ninetyNinth is the 99th percentile of acquires for as long as going says.
func (s *running) ninetyNinth(name string, going func(n int) bool) time.Duration {
	s.Helper()
	var took []time.Duration
	for n := 0; going(n); n++ {
		began := time.Now()
		s.acquire(fmt.Sprint(name, n), "r1", "204 held")
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

func TestUsersAmongForeignKeys_P03(t *testing.T) {
	server := redistest.Start(t, "--rename-command", "KEYS", "")
	loadForeign(t, server, *foreignKeys)
	s := start(t, operators(), "REDIS_URL=unix://"+server.Socket, "ACQUIRE_TIMEOUT=10s")
	for n := range 5 {
		s.acquire("holder", fmt.Sprint("r", n), "204 held", "X-Stream-Limit: -1")
	}
	// What one look costs the acquires of the same seconds, in several rounds, for a machine may be busy with other things.
	const rounds = 5
	for round := range rounds {
		alone := s.ninetyNinth(fmt.Sprint("alone", round, "-"), func(n int) bool { return n < 1000 })
		took, users, beside := s.usersBesideAcquires(fmt.Sprint("beside", round, "-"))
		t.Logf("%d foreign keys: users in %s, partial %t; p99 of an acquire %s alone, %s beside the look", *foreignKeys, took, users.Partial, alone, beside)
		if !users.Partial && (len(users.Users) != 1 || users.Users[0].User != "holder" || users.Users[0].Slots != 5) {
			t.Errorf("users %+v", users)
		}
		if (took < 2*time.Second || users.Partial) && beside <= alone*3/2+20*time.Millisecond { // the milliseconds are for such a machine
			return
		}
	}
	t.Errorf("in none of %d rounds the look took less than 2 s or was partial, with the p99 of an acquire within 1.5 times and 20 ms", rounds)
}

type usersAnswer struct {
	Users []struct {
		User  string `json:"user"`
		Slots int    `json:"slots"`
	} `json:"users"`
	Partial bool `json:"partial"`
}

// usersBesideAcquires looks at all users, while acquires go on.
func (s *running) usersBesideAcquires(name string) (took time.Duration, users usersAnswer, ninetyNinth time.Duration) {
	s.Helper()
	answered := make(chan *http.Response, 1)
	began := time.Now()
	go func() { answered <- s.asked("GET", "/admin/api/users?min=5", "", basic("alice", aliceToken)) }()
	ninetyNinth = s.ninetyNinth(name, func(n int) bool {
		select {
		case response := <-answered:
			took, users = time.Since(began), decoded[usersAnswer](s, response)
		default:
		}
		return took == 0 || n < 100
	})
	return took, users, ninetyNinth
}

func TestUsersOfAWholeCluster_P03(t *testing.T) {
	t.Parallel()
	addresses := make([]string, 3)
	servers := make([]*redistest.Server, 3)
	for i := range servers {
		ports := [2]string{}
		for j := range ports {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, ports[j], _ = net.SplitHostPort(listener.Addr().String())
			_ = listener.Close()
		}
		servers[i] = redistest.Start(t, "--cluster-enabled", "yes", "--bind", "127.0.0.1", "--port", ports[0], "--cluster-port", ports[1])
		addresses[i] = "127.0.0.1:" + ports[0]
		for _, command := range [][]any{
			{"CLUSTER", "ADDSLOTSRANGE", i * 5461, min(16383, i*5461+5460+i/2)},
			{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
		} {
			if err := servers[i].Client.Do(t.Context(), command...).Err(); err != nil {
				t.Fatal(command, err)
			}
		}
		if i > 0 {
			host, port, _ := net.SplitHostPort(addresses[0])
			bus := servers[0].Client.ConfigGet(t.Context(), "cluster-port").Val()["cluster-port"]
			if err := servers[i].Client.Do(t.Context(), "CLUSTER", "MEET", host, port, bus).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the cluster is well", func() bool {
		return !slices.ContainsFunc(servers, func(server *redistest.Server) bool {
			info := server.Client.ClusterInfo(t.Context()).Val()
			return !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3")
		})
	})
	s := start(t, operators(), "REDIS_MODE=cluster", "REDIS_URL=redis://"+strings.Join(addresses, ","), "ACQUIRE_TIMEOUT=10s")
	for n := range 40 {
		s.acquire(fmt.Sprint("user", n), "r1", "204 held")
	}
	got := decoded[struct{ Users []any }](s, s.alice(200, "GET", "/admin/api/users", ""))
	if len(got.Users) != 40 {
		t.Errorf("%d of 40 users are listed", len(got.Users))
	}
	s.alice(200, "POST", "/admin/api/release", `{"user":"user7","reason":"x"}`)
	s.wantsSlots("user7", 0)
}

func TestReleaseOfAnOperatorWhoHangsUpIsDone(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t, operators())
	s.acquire("u1", "r1", "204 held")
	server.Pause()
	ctx, hangUp := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.admin+"/admin/api/release", strings.NewReader(`{"user":"u1","id":"r1","reason":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("alice", aliceToken)
	request.Header.Set("Content-Type", "application/json")
	left := make(chan error, 1)
	go func() {
		response, err := s.client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		left <- err
	}()
	eventually(t, "the release is under way", func() bool { return server.Waiting("release") == 1 })
	hangUp()
	if err := <-left; err == nil {
		t.Error("it was answered")
	}
	server.Unpause()
	eventually(t, "it is in the trail", func() bool { return len(s.trail()) == 1 })
	s.audited("u1", "x", "released", "r1")
	s.wantsSlots("u1", 0)
}

func TestStopWaitsForLooksOfThePage(t *testing.T) {
	t.Parallel()
	cfg, err := loadConfig([]string{"STREAMCAP_" + operators()})
	if err != nil {
		t.Fatal(err)
	}
	service := newService(cfg, zerolog.New(io.Discard))
	page := newAdmin(service)
	ended := make(chan struct{})
	wait := glance(page, func() (int, error) { <-ended; return 1, nil })
	over := make(chan struct{})
	close(over)
	if look := wait(over); !look.pending {
		t.Errorf("look %+v", look)
	}
	waited := make(chan struct{})
	go func() { service.looking.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Error("nobody waits for it")
	case <-time.After(20 * time.Millisecond):
	}
	close(ended)
	<-waited
}
