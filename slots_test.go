package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// batch sends a JSON body and wants this status and, unless it is a refusal, this body.
func (s *running) batch(path, body, want string) *http.Response {
	s.Helper()
	response := s.do("POST", path, body, "Content-Type: application/json")
	got := response.Status[:3]
	if response.StatusCode == http.StatusOK {
		got += " " + bodyOf(response)
	}
	if got != want {
		s.Fatalf("%s %.200s:\ngot  %s\nwant %s", path, body, got, want)
	}
	return response
}

func TestHeartbeatOfOneSlot(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held")
		s.acquire("u1", "long", "204 held")
		s.heartbeat("u1", "r1", "204")
		s.heartbeat(" u1 ", "r1", "204")
		s.heartbeat("u1", "r2", "410 not_held")
		s.heartbeat("u2", "r1", "410 not_held")
		s.release("u1", "r1", "1")
		s.heartbeat("u1", "r1", "410 not_held")
		s.heartbeat("u1", "long", "204")
		s.warnsOnce("message", "not held")
	}, "DEFAULT_LIMIT=2")
}

func TestReleaseOfOneSlot_S04(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held")
		s.release("u2", "r1", "0") // the same answer as for a slot that is unknown
		s.acquire("u1", "r2", "403 denied stream_limit_reached")
		s.release("u1", "r1", "1")
		s.release("u1", "r1", "0")
		s.acquire("u1", "r2", "204 held")
		for _, method := range []string{"PUT", "DELETE"} {
			if response := s.do(method, "/release///?x=y", "", "X-User-Id: u1", "X-Request-Id: r2"); response.StatusCode != http.StatusNoContent {
				s.Errorf("%s: %s", method, response.Status)
			}
		}
	})
}

func TestMaxStreamAgeIsToldToTheBackend_H05(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held")
		eventually(s.T, "the stream is too old", func() bool {
			response := s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: r1")
			return response.StatusCode == http.StatusGone && response.Header.Get(headerReason) == "max_age"
		})
		if hints := s.log.find("level", "warn"); len(hints) != 0 {
			s.Errorf("its age is no mistake of the backend's: %v", hints)
		}
		s.heartbeat("u1", "r1", "410 not_held")
		s.acquire("u1", "r2", "204 held")
	}, "MAX_STREAM_AGE=300ms")
}

func TestBatches(t *testing.T) {
	eachStore(t, func(s *running) {
		s.acquire("u1", "r1", "204 held")
		s.acquire("u2", "r1", "204 held")
		s.batch("/heartbeat", `{"slots":[]}`, `200 {"extended":0,"gone":[]}`)
		s.batch("/heartbeat", ` { "slots" : [ {"id":"r1","more":[1,{}],"user":" u1\t"},{"user":"u1","id":"r1"},{"user":"u2","id":"r1"},{"user":"u2","id":"r9"},{"user":"u2","id":"r9"}],"x":null} `,
			`200 {"extended":2,"gone":[{"user":"u2","id":"r9"}]}`)
		s.batch("/release", `{"slots":[]}`, `200 {"released":0}`)
		s.batch("/release", `{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r1"},{"user":"u2","id":"r9"}]}`, `200 {"released":1}`)
		s.heartbeat("u1", "r1", "410 not_held")
		s.heartbeat("u2", "r1", "204")
		if got := s.do("POST", "/release", `{"slots":[{"user":"u2","id":"r1"}]}`, "Content-Type: Application/JSON; charset=utf-8"); bodyOf(got) != `{"released":1}` {
			s.Errorf("%s", got.Status)
		}
		s.wants("400", s.do("POST", "/release", `{"slots":[]}`, "Content-Type: application/json", "Content-Type: application/json"))
	})
}

func TestBatchKeepsBytesThatAreNotUTF8(t *testing.T) {
	eachStore(t, func(s *running) {
		for _, user := range []string{"\xff", "\xfe", "a\xffé", "\ufffd", "\U0010ff80"} {
			s.acquire(user, "r1", "204 held")
		}
		s.batch("/release", "{\"slots\":[{\"user\":\"\xff\",\"id\":\"r1\"}]}", `200 {"released":1}`)
		s.batch("/heartbeat", "{\"slots\":[{\"user\":\"\xff\",\"id\":\"r1\"},{\"user\":\"\xfe\",\"id\":\"r1\"},{\"user\":\"\ufffd\",\"id\":\"r1\"}]}",
			"200 {\"extended\":2,\"gone\":[{\"user\":\"\xff\",\"id\":\"r1\"}]}")
		s.batch("/heartbeat", `{"slots":[{"user":"\"\\\u00e9\/\ud83d\ude00","id":"r1"}]}`,
			"200 {\"extended\":0,\"gone\":[{\"user\":\"\\\"\\\\é/😀\",\"id\":\"r1\"}]}")
	})
}

func slots(n int) string {
	var b strings.Builder
	b.WriteString(`{"slots":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"user":"u%d","id":"r%d"}`, i%1000, i)
	}
	return b.String() + `]}`
}

func TestBodyThatNobodyReadsIsNotWaitedFor_N06(t *testing.T) {
	s := start(t)
	s.acquire("u1", "r1", "204 held")
	slot := " HTTP/1.1\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\nContent-Length: 500\r\n\r\n"
	for request, want := range map[string]string{"POST /heartbeat": "204", "GET /heartbeat": "405", "GET /healthz": "200", "POST /nothing": "404"} {
		if got := s.raw(request + slot); !strings.Contains(got, " "+want+" ") {
			t.Errorf("%s with a body that never comes: %s, want %s", request, got, want)
		}
	}
	response := s.do("POST", "/heartbeat", `{"slots":[{"user":"u1","id":"r1"}]}`, "Content-Type: application/json")
	if response.Close {
		t.Error("the connection of a batch that was read is closed")
	}
}

func TestBatchBounds(t *testing.T) {
	eachStore(t, func(s *running) {
		s.batch("/release", slots(10_000), `200 {"released":0}`)
		s.batch("/release", slots(10_001), "413")
		s.batch("/release", strings.Replace(slots(10_001), `"u1"`, `"-"`, 1), "413") // before 400
		padding := strings.Repeat(" ", 2<<20-len(slots(1)))
		s.batch("/release", slots(1)+padding, `200 {"released":0}`)
		s.batch("/release", slots(1)+padding+" ", "413")
		if got := s.raw("POST /release HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2097153\r\n\r\n"); !strings.Contains(got, " 413 ") {
			s.Errorf("a body announced as too long: %s", got)
		}
	})
}

func TestBadBatchIsNamedAndChangesNothing(t *testing.T) {
	s := start(t)
	s.acquire("u1", "r1", "204 held")
	good := `{"user":"u1","id":"r1"}`
	for body, detail := range map[string]string{
		``:                                    "not valid JSON",
		`{"slots":[` + good + `]`:             "not valid JSON",
		`{"slots":[` + good + `]} x`:          "not valid JSON",
		`{"slots":[` + good + `]}{}`:          "not valid JSON",
		`[` + good + `]`:                      `no list "slots"`,
		`{}`:                                  `no list "slots"`,
		`null`:                                `no list "slots"`,
		`{"slots":null}`:                      `no list "slots"`,
		`{"slots":{}}`:                        `no list "slots"`,
		`{"Slots":[` + good + `]}`:            `no list "slots"`,
		`{"slots":[],"slots":[` + good + `]}`: `"slots" comes twice`,
		`{"slots":[` + good + `,{"user":"a","id":"r","us\u0065r":"b"}]}`:                 `slots[1]: "user" comes twice`,
		`{"slots":[` + good + `,7]}`:                                                     `slots[1]: not {"user"`,
		`{"slots":[` + good + `,{}]}`:                                                    "slots[1]: the user is missing; the request id is missing",
		`{"slots":[` + good + `,{"user":7}]}`:                                            `slots[1]: not {"user"`,
		`{"slots":[` + good + `,{"user":"u1","id":null}]}`:                               `slots[1]: not {"user"`,
		`{"slots":[` + good + `,{"user":"u1"}]}`:                                         "slots[1]: the request id is missing",
		`{"slots":[` + good + `,{"user":"-","id":"r1"}]}`:                                "slots[1]: the user is missing",
		`{"slots":[` + good + `,{"user":"a\u0000b","id":"r1"}]}`:                         "slots[1]: the user holds a control character",
		`{"slots":[` + good + `,{"user":"a\nb","id":"r1"}]}`:                             "slots[1]: the user holds a control character",
		`{"slots":[` + good + `,{"user":"\\\ud83d\ud800","id":"r1"}]}`:                   "slots[1]: half of a UTF-16 pair",
		`{"slots":[` + good + `,{"user":"\udc00","id":"r1"}]}`:                           "slots[1]: half of a UTF-16 pair",
		`{"slots":[` + good + `,{"user":"u1","id":"r 1"}]}`:                              "slots[1]: the request id holds",
		`{"slots":[` + good + `,{"user":"` + strings.Repeat("x", 257) + `","id":"r1"}]}`: "slots[1]: the user has 257 bytes",
		`{"slots":[` + good + `,{"user":"u1","id":"` + strings.Repeat("x", 129) + `"}]}`: "slots[1]: the request id has 129 bytes",
		strings.Repeat("[", 100_000):                                                     "not valid JSON",
		`{"slots":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20-20) + `}`:   "not valid JSON",
	} {
		for _, path := range []string{"/release", "/heartbeat"} {
			response := s.do("POST", path, body, "Content-Type: application/json")
			var problem struct {
				Title, Detail string
				Status        int
			}
			text := bodyOf(response)
			if err := json.Unmarshal([]byte(text), &problem); err != nil {
				t.Errorf("%.80s: %v in %q", body, err, text)
			}
			if response.StatusCode != http.StatusBadRequest || problem.Status != http.StatusBadRequest || !strings.Contains(problem.Detail, detail) ||
				response.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %.80s: %s %s", path, body, response.Status, text)
			}
		}
	}
	s.heartbeat("u1", "r1", "204")
}

func TestRefusalsComeInTheirOrder_S03(t *testing.T) {
	s := start(t, "BACKEND_TOKEN=right-token")
	s.acquire("u1", "r1", "204 held") // takes no token: nginx has none
	tooMany, bad := slots(10_001), `{"slots":[{}]}`
	for _, c := range []struct {
		method, path, body, token string
		want                      int
	}{
		{"GET", "/heartbeat", "", "", 405},
		{"DELETE", "/heartbeat", "", "right-token", 405},
		{"GET", "/release", tooMany, "wrong", 405},
		{"FOO", "/release", "", "right-token", 405},
		{"POST", "/heartbeat", tooMany, "", 401},
		{"POST", "/release", bad, "wrong", 401},
		{"DELETE", "/release", bad, "right", 401},
		{"PUT", "/heartbeat", tooMany, "right-token", 413},
		{"PUT", "/heartbeat", bad, "right-token", 400},
		{"POST", "/release", "", "right-token", 400},
	} {
		headers := []string{"Content-Type: application/json"}
		if c.token != "" {
			headers = append(headers, "Authorization: bearer "+c.token)
		}
		response := s.do(c.method, c.path, c.body, headers...)
		if response.StatusCode != c.want || response.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s with token %q: %s, want %d", c.method, c.path, c.token, response.Status, c.want)
		}
		allow := map[string]string{"/heartbeat": "POST, PUT", "/release": "POST, PUT, DELETE"}[c.path]
		if c.want == 405 && response.Header.Get("Allow") != allow {
			t.Errorf("Allow: %q, want %q", response.Header.Get("Allow"), allow)
		}
	}
	headers := []string{"X-User-Id: u1", "X-Request-Id: r1"}
	for _, wrong := range []string{"Authorization: Basic right-token", "Authorization: right-token", "Authorization: Bearer", "X-Token: right-token"} {
		s.wants("401", s.do("POST", "/release", "", append(headers, wrong)...))
	}
	s.wants("401", s.do("POST", "/release", "", append(headers, "Authorization: Bearer right-token", "Authorization: Bearer right-token")...))
	if got := s.wants("204", s.do("POST", "/release", "", append(headers, "Authorization: Bearer right-token")...)); got.Header.Get(headerReleased) != "1" {
		t.Error("the wrong tokens have changed something")
	}
}

func TestBadNameOfOneSlotIs400(t *testing.T) {
	s := start(t)
	s.acquire("u1", "r1", "204 held")
	for _, headers := range [][]string{
		nil, {"X-User-Id: u1"}, {"X-Request-Id: r1"}, {"X-User-Id: -", "X-Request-Id: r1"}, {"X-User-Id: u1", "X-User-Id: u1", "X-Request-Id: r1"},
		{"X-User-Id: u1", "X-Request-Id: r1", "X-Request-Id: r1"}, {"X-User-Id: u1", "X-Request-Id: r 1"},
	} {
		for _, path := range []string{"/heartbeat", "/release"} {
			response := s.do("POST", path, "", headers...)
			if response.StatusCode != http.StatusBadRequest || response.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %q: %s", path, headers, response.Status)
			}
		}
	}
	s.heartbeat("u1", "r1", "204")
}

// partialStore takes a part of what it is given.
type partialStore struct{ slotstore.Store }

func (partialStore) Heartbeat(context.Context, ...slotstore.ID) (slotstore.Beats, error) {
	return slotstore.Beats{Extended: 1, Unrecorded: 1}, &slotstore.Error{Op: "heartbeat", Reason: slotstore.Timeout, Err: context.DeadlineExceeded}
}

func TestBatchOfWhichAPartFailedIs202(t *testing.T) {
	store := partialStore{openStore(mustLoad(t), slotstore.Events{})}
	s := serveStore(t, mustLoad(t), store)
	s.wants("202 timeout", s.do("POST", "/heartbeat", `{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r2"}]}`, "Content-Type: application/json"))
}

func TestReleaseThatRedisDidNotTakeIsKept_R05(t *testing.T) {
	s, server := withRedis(t, "RELEASE_TIMEOUT=100ms")
	s.acquire("u1", "r1", "204 held")
	server.Pause()
	s.wants("202 timeout", s.do("POST", "/release", "", "X-User-Id: u1", "X-Request-Id: r1"))
	server.Unpause()
	eventually(t, "the slot is given back", func() bool { return server.Client.Exists(t.Context(), "streamcap:{u1}:slots").Val() == 0 })
}

func TestCallerThatHangsUpDoesNotUndoItsRelease_R01(t *testing.T) {
	s, server := withRedis(t, "RELEASE_TIMEOUT=10s")
	s.acquire("u1", "r1", "204 held")
	server.Pause()
	s.leaves("/release", func() bool { return server.Waiting("release") == 1 }, "u1", "r1")
	server.Unpause()
	eventually(t, "the slot is given back", func() bool { return server.Client.Exists(t.Context(), "streamcap:{u1}:slots").Val() == 0 })
}

// A backend whose stream ends may hang up on the heartbeat that is under way, and its release may overtake that.
func TestHeartbeatWhoseCallerHungUpIsNoMistake(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	service := newService(mustLoad(t), zerolog.New(&log))
	t.Cleanup(func() { service.store.Close() })
	heartbeat := func(ctx context.Context) {
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/heartbeat", http.NoBody)
		request.Header[headerUser], request.Header[headerRequestID] = []string{"u1"}, []string{"r1"}
		service.publicHandler().ServeHTTP(httptest.NewRecorder(), request)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	heartbeat(ctx)
	if log.Len() > 0 {
		t.Errorf("of a caller that hung up: %s", log.String())
	}
	heartbeat(t.Context())
	if log.Len() == 0 {
		t.Error("nothing of a caller that is there")
	}
}

func TestHeartbeatOfAHungRedisIsQuick_H08(t *testing.T) {
	s, server := withRedis(t, "HEARTBEAT_TIMEOUT=50ms")
	s.acquire("u1", "r1", "204 held")
	server.Pause()
	s.heartbeat("u1", "r1", "202 timeout")
	server.Unpause()
	eventually(t, "heartbeats are recorded again", func() bool {
		return s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: r1").StatusCode == http.StatusNoContent
	})
}

// FuzzBatch wants every body to be refused, or read as the slots that writing them again gives.
func FuzzBatch(f *testing.F) {
	for _, seed := range []string{
		`{"slots":[{"user":"u1","id":"r1"}]}`, slots(3), "{\"slots\":[{\"user\":\"\xff\",\"id\":\"r\"}]}", `{"slots":[{"user":"\ud800","id":"r"}]}`, `{"slots":[],"slots":[{}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		ids, err := parseBatch(body)
		if err != nil {
			if !utf8.ValidString(err.Error()) && utf8.Valid(body) {
				t.Errorf("error %q", err)
			}
			return
		}
		if !json.Valid(body) || len(ids) > maxBatchSlots {
			t.Errorf("%d slots of %q", len(ids), body)
		}
		again := []byte(`{"slots":[`)
		for i, id := range ids {
			if user, err := parseUser(id.User); err != nil || user != id.User {
				t.Errorf("user %q of %q: %v", id.User, body, err)
			}
			if _, err := parseRequestID(id.Request); err != nil {
				t.Errorf("request id %q of %q: %v", id.Request, body, err)
			}
			if i > 0 {
				again = append(again, ',')
			}
			again = appendString(append(again, `{"user":`...), id.User)
			again = append(appendString(append(again, `,"id":`...), id.Request), '}')
		}
		if back, err := parseBatch(append(again, "]}"...)); err != nil || fmt.Sprint(back) != fmt.Sprint(ids) {
			t.Errorf("%q came back as %q, %v", ids, back, err)
		}
	})
}
