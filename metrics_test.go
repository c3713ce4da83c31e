package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// scrape is /metrics: each series with its value.
func (s *running) scrape() map[string]float64 {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.admin+"/metrics", http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", "identity") // to compress is a third of a scrape's work
	response, err := s.client.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	return series(s.T, response.Body)
}

func series(t *testing.T, text io.Reader) map[string]float64 {
	t.Helper()
	all := make(map[string]float64)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[line[:at]] = value
	}
	return all
}

// ofOurs leaves out what the Go runtime and the process tell of themselves.
func ofOurs(all map[string]float64) map[string]float64 {
	ours := make(map[string]float64)
	for name, value := range all {
		if strings.HasPrefix(name, "streamcap_") {
			ours[name] = value
		}
	}
	return ours
}

func TestEveryMetricIsThereFromTheFirstScrape(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.scrape()
	want := []string{"streamcap_expired_total", "streamcap_degraded", "streamcap_nginx_log_bad_total", "streamcap_user_slots_max", "streamcap_slots_live", "streamcap_oldest_slot_seconds"}
	add := func(format string, values ...[]string) {
		all := []string{format}
		for _, labels := range values {
			var next []string
			for _, name := range all {
				for _, value := range labels {
					next = append(next, strings.Replace(name, "?", value, 1))
				}
			}
			all = next
		}
		want = append(want, all...)
	}
	roles := slotstore.Roles
	reasons := strings.Fields("timeout unavailable breaker_open overload oom readonly noperm wrongtype moved internal")
	add(`streamcap_acquire_total{result="?"}`, strings.Fields("granted renewed denied refused failclosed uncounted failopen cancelled"))
	add(`streamcap_uncounted_total{reason="?"}`, strings.Fields("preflight no_user no_request_id shadow"))
	add(`streamcap_failopen_total{reason="?",role="?"}`, reasons, roles)
	add(`streamcap_heartbeat_total{result="?"}`, strings.Fields("extended gone unrecorded"))
	add(`streamcap_release_total{result="?",source="?"}`, strings.Fields("released absent unrecorded"), strings.Fields("backend nginx admin abandoned"))
	add(`streamcap_breaker_open{role="?"}`, roles)
	add(`streamcap_queue_depth{role="?"}`, roles)
	add(`streamcap_shed_total{role="?"}`, roles)
	add(`streamcap_users{slots="?"}`, []string{"1", "2", "3", "4+"})
	for role, ops := range map[string]string{"acquire": "acquire", "heartbeat": "heartbeat", "release": "release", "admin": "list scan"} {
		for op := range strings.FieldsSeq(ops) {
			want = append(want, fmt.Sprintf(`streamcap_store_seconds_count{op="%s",role="%s"}`, op, role))
			want = append(want, fmt.Sprintf(`streamcap_store_seconds_bucket{op="%s",role="%s",le="0.0005"}`, op, role))
			want = append(want, fmt.Sprintf(`streamcap_store_seconds_bucket{op="%s",role="%s",le="2"}`, op, role))
		}
	}
	for _, name := range want {
		value, there := first[name]
		if !there || value != 0 {
			t.Errorf("%s: there %t, %v", name, there, value)
		}
	}
	build := fmt.Sprintf(`streamcap_build_info{goversion="%s",version="%s"}`, runtime.Version(), buildVersion())
	if first[build] != 1 {
		t.Errorf("no %s", build)
	}
}

func TestEachAnswerHasItsCounter_M04_A11_A12(t *testing.T) {
	s, server := impatientService(t, "DEFAULT_LIMIT=2", "ACQUIRE_TIMEOUT=300ms", "RELEASE_TIMEOUT=300ms", "HEARTBEAT_TIMEOUT=300ms")
	requests := 0
	counted := func(want string, headers ...string) {
		t.Helper()
		requests++
		s.wants(want, s.do("GET", "/acquire", "", headers...))
	}
	counted("204 held", "X-User-Id: u1", "X-Request-Id: r1")
	counted("204 held", "X-User-Id: u1", "X-Request-Id: r1")
	counted("204 held", "X-User-Id: u1", "X-Request-Id: r2")
	counted("403 denied stream_limit_reached", "X-User-Id: u1", "X-Request-Id: r3")
	counted("204 uncounted preflight", "X-User-Id: u1", "X-Request-Id: r3", "X-Original-Method: OPTIONS")
	counted("204 uncounted no_user")
	counted("204 uncounted no_user", "X-User-Id: -")
	counted("204 uncounted no_request_id", "X-User-Id: u1")
	s.heartbeat("u1", "r1", "204")
	s.heartbeat("u1", "zz", "410 not_held")
	s.batch("/heartbeat", `{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r2"},{"user":"u1","id":"zz"}]}`, `200 {"extended":2,"gone":[{"user":"u1","id":"zz"}]}`)
	s.release("u1", "r2", "1")
	s.release("u1", "r2", "0")
	s.ends(fmt.Sprintf(endLine, "u1", "r1"))
	s.ends("nonsense")
	eventually(t, "the datagrams are counted", func() bool {
		now := s.scrape()
		return now[`streamcap_release_total{result="released",source="nginx"}`] == 1 && now["streamcap_nginx_log_bad_total"] == 1
	})

	server.Pause()
	requests++
	s.leaves("/acquire", func() bool { return server.Waiting("acquire") == 1 }, "u1", "left")
	server.Unpause()
	eventually(t, "the client that left is counted", func() bool {
		now := s.scrape()
		return now[`streamcap_acquire_total{result="cancelled"}`] == 1 && now[`streamcap_release_total{result="released",source="abandoned"}`] == 1
	})
	server.Signal(syscall.SIGSTOP)
	counted("204 failopen timeout", "X-User-Id: u1", "X-Request-Id: r4")
	s.heartbeat("u1", "r1", "202 timeout")
	s.wants("202 timeout", s.do("POST", "/release", "", "X-User-Id: u1", "X-Request-Id: r1"))
	server.Signal(syscall.SIGCONT)

	got := ofOurs(s.scrape())
	for name, want := range map[string]float64{
		`streamcap_acquire_total{result="granted"}`:                      2,
		`streamcap_acquire_total{result="renewed"}`:                      1,
		`streamcap_acquire_total{result="denied"}`:                       1,
		`streamcap_acquire_total{result="uncounted"}`:                    4,
		`streamcap_acquire_total{result="failopen"}`:                     1,
		`streamcap_acquire_total{result="cancelled"}`:                    1,
		`streamcap_uncounted_total{reason="preflight"}`:                  1,
		`streamcap_uncounted_total{reason="no_user"}`:                    2,
		`streamcap_uncounted_total{reason="no_request_id"}`:              1,
		`streamcap_failopen_total{reason="timeout",role="acquire"}`:      1,
		`streamcap_failopen_total{reason="timeout",role="heartbeat"}`:    1,
		`streamcap_failopen_total{reason="timeout",role="release"}`:      0,
		`streamcap_heartbeat_total{result="extended"}`:                   3,
		`streamcap_heartbeat_total{result="gone"}`:                       2,
		`streamcap_heartbeat_total{result="unrecorded"}`:                 1,
		`streamcap_release_total{result="released",source="backend"}`:    1,
		`streamcap_release_total{result="unrecorded",source="backend"}`:  1,
		`streamcap_store_seconds_count{op="heartbeat",role="heartbeat"}`: 4,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	sum := 0.0
	for name, value := range got {
		if strings.HasPrefix(name, "streamcap_acquire_total") {
			sum += value
		}
	}
	if sum != float64(requests) {
		t.Errorf("the results sum up to %v, want the %d requests", sum, requests)
	}
}

func TestScrapeSeesOneSample_M03(t *testing.T) {
	t.Parallel()
	registry, looks := prometheus.NewPedanticRegistry(), 0
	registry.MustRegister(newSampled(func() slotstore.Sample {
		looks++
		return slotstore.Sample{Slots: looks, Users: [4]int{0: looks, 3: looks}, Oldest: time.Duration(looks) * time.Second}
	}))
	for range 3 {
		recorder := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		now := series(t, recorder.Body)
		live := now["streamcap_slots_live"]
		if live != float64(looks) || now["streamcap_oldest_slot_seconds"] != live || now[`streamcap_users{slots="1"}`] != live || now[`streamcap_users{slots="4+"}`] != live {
			t.Errorf("look %d: %v", looks, now)
		}
	}
}

func TestPolicyHasItsCounter_M04(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		settings        []string
		store           func() (slotstore.Decision, error)
		headers         []string
		result, further string // the series that count, space-separated
	}{
		{"refused", []string{"ON_MISSING_ID=deny"}, nil, nil, "refused", ""},
		{"shadow of a refusal", []string{"ON_MISSING_ID=deny", "ENFORCE=false"}, nil, nil, "uncounted", `streamcap_uncounted_total{reason="shadow"}`},
		{
			"shadow of a denial",
			[]string{"ENFORCE=false"},
			func() (slotstore.Decision, error) { return slotstore.Decision{Used: 1}, nil },
			[]string{"X-User-Id: u1", "X-Request-Id: r1"},
			"uncounted",
			`streamcap_uncounted_total{reason="shadow"}`,
		},
		{"closed", []string{"ON_STORE_FAILURE=closed"}, failsWith(slotstore.OOM), []string{"X-User-Id: u1", "X-Request-Id: r1"}, "failclosed", ""},
		{"open", nil, failsWith(slotstore.OOM), []string{"X-User-Id: u1", "X-Request-Id: r1"}, "failopen", `streamcap_failopen_total{reason="oom",role="acquire"}`},
		{
			"shadow of closed",
			[]string{"ON_STORE_FAILURE=closed", "ENFORCE=false"},
			failsWith(slotstore.OOM),
			[]string{"X-User-Id: u1", "X-Request-Id: r1"},
			"uncounted",
			`streamcap_failopen_total{reason="oom",role="acquire"} streamcap_uncounted_total{reason="shadow"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			service := serviceOn(mustLoad(t, c.settings...), answeringStore{acquire: c.store})
			answerTo(service.publicHandler(), c.headers...)
			recorder := answerTo(service.metrics.handler())
			got := series(t, recorder.Body)
			for name, value := range got {
				want := name == fmt.Sprintf(`streamcap_acquire_total{result="%s"}`, c.result) || slices.Contains(strings.Fields(c.further), name)
				if strings.HasPrefix(name, "streamcap_failopen") || strings.HasPrefix(name, "streamcap_uncounted") || strings.HasPrefix(name, "streamcap_acquire") {
					if value != truth(want) {
						t.Errorf("%s is %v", name, value)
					}
				}
			}
		})
	}
}

func TestLocalDecisionsStayVisible(t *testing.T) {
	t.Parallel()
	service := newService(mustLoad(t, "ON_STORE_FAILURE=local", "REDIS_URL=redis://127.0.0.1:1", "ACQUIRE_TIMEOUT=10s"), zerolog.Nop())
	t.Cleanup(func() { service.store.Close() })
	handler := service.publicHandler()
	answerTo(handler, "X-User-Id: u1", "X-Request-Id: r1")
	answerTo(handler, "X-User-Id: u1", "X-Request-Id: r2")
	got := series(t, answerTo(service.metrics.handler()).Body)
	if got[`streamcap_acquire_total{result="granted"}`] != 1 || got[`streamcap_acquire_total{result="denied"}`] != 1 ||
		got[`streamcap_failopen_total{reason="unavailable",role="acquire"}`] != 2 {
		t.Errorf("%v", ofOurs(got))
	}
}

// strangersStore answers each acquire in another way, and knows no slot.
type strangersStore struct {
	slotstore.Store
	asked *int
}

func (s strangersStore) Acquire(context.Context, slotstore.Request) (slotstore.Decision, error) {
	*s.asked++
	switch *s.asked % 4 {
	case 0:
		return slotstore.Decision{Outcome: slotstore.Granted, Used: 1}, nil
	case 1:
		return slotstore.Decision{Outcome: slotstore.Renewed, Used: 2}, nil
	case 2:
		return failsWith(slotstore.WrongType)()
	}
	return slotstore.Decision{Used: 2}, nil
}

func (strangersStore) Heartbeat(_ context.Context, ids ...slotstore.ID) (slotstore.Beats, error) {
	gone := make([]slotstore.Gone, len(ids))
	for i, id := range ids {
		gone[i].ID = id
	}
	return slotstore.Beats{Gone: gone}, nil
}

func (strangersStore) Release(_ context.Context, ids ...slotstore.ID) (slotstore.Releases, error) {
	return slotstore.Releases{Absent: len(ids)}, nil
}

func TestSeriesAndMemoryStayTheSameWhateverUsersSend_M01(t *testing.T) {
	s := start(t, "DEFAULT_LIMIT=2")
	before := ofOurs(s.scrape())
	for range 3 {
		s.do("FOO", "/any/path", "", "X-User-Id: \xff")
	}
	if got := ofOurs(s.scrape()); len(got) != len(before) {
		t.Errorf("%d series, %d before", len(got), len(before))
	}

	service := serviceOn(mustLoad(t), strangersStore{Store: openStore(mustLoad(t), slotstore.Events{}), asked: new(int)})
	public, scrape := service.publicHandler(), service.metrics.handler()
	post := func(path, user, id string) {
		request := httptest.NewRequest(http.MethodPost, path, http.NoBody)
		request.Header[headerUser], request.Header[headerRequestID] = []string{user}, []string{id}
		public.ServeHTTP(httptest.NewRecorder(), request)
	}
	const known, strangers = 20_000, 100_000 // twice what any table remembers, and the rest
	var held, full [2]uint64                 // bytes and series
	measure := func() [2]uint64 {
		answer := answerTo(scrape).Body.String()
		runtime.GC()
		runtime.GC() // what pools held goes with the second
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return [2]uint64{memory.HeapAlloc, uint64(strings.Count(answer, "\n"))}
	}
	for n := range strangers {
		user, id := fmt.Sprintf("u\xff%d", n), fmt.Sprint("r", n)
		answerTo(public, "X-User-Id: "+user, "X-Request-Id: "+id, fmt.Sprint("X-Plan: p", n), fmt.Sprint("X-Original-Method: M", n))
		switch n % 8 {
		case 0:
			post("/heartbeat", user, id)
		case 4:
			post("/release", user, id)
		}
		if n == known {
			held = measure()
		}
	}
	full = measure()
	t.Logf("after %d users %d bytes and %d lines, after %d users %d bytes and %d lines", known, held[0], held[1], strangers, full[0], full[1])
	if full[1] != held[1] {
		t.Errorf("/metrics has %d lines, %d before", full[1], held[1])
	}
	if full[0] > held[0]+1<<20 {
		t.Errorf("the heap has %d bytes, %d before: something remembers every user", full[0], held[0])
	}
	for name := range ofOurs(series(t, answerTo(scrape).Body)) {
		if _, known := before[name]; !known && !strings.HasPrefix(name, "streamcap_breaker_open") {
			t.Errorf("a new series: %s", name)
		}
	}
}

func TestSampleIsShownWithinSeconds_M03(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url := "REDIS_URL=unix://" + server.Socket
	seed := start(t, url, "DEFAULT_LIMIT=9", "ACQUIRE_TIMEOUT=10s")
	for n := range 5 {
		seed.acquire("u1", fmt.Sprint("r", n), "204 held")
	}
	seed.acquire("u2", "r1", "204 held")
	server.Client.Del(t.Context(), "streamcap:sample") // the one from before there were any slots
	s := start(t, url)
	eventually(t, "a new sidecar shows the slots of the other", func() bool {
		now := s.scrape()
		return now["streamcap_slots_live"] == 6 && now[`streamcap_users{slots="1"}`] == 1 && now[`streamcap_users{slots="4+"}`] == 1
	})
	eventually(t, "and so does the other", func() bool { return seed.scrape()["streamcap_slots_live"] == 6 })
}

func TestMetricsNeverWaitForRedis(t *testing.T) {
	t.Parallel()
	s, server := impatientService(t, "ADMIN_TIMEOUT=30s")
	server.Signal(syscall.SIGSTOP)
	for n := range 6 {
		s.do("GET", "/acquire", "", "X-User-Id: u1", fmt.Sprint("X-Request-Id: r", n))
	}
	begin := time.Now()
	got := s.scrape()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a scrape took %s", took)
	}
	if got["streamcap_degraded"] != 1 || got[`streamcap_breaker_open{role="acquire"}`] != 1 || got[`streamcap_breaker_open{role="heartbeat"}`] != 0 {
		t.Errorf("%v", ofOurs(got))
	}
	server.Signal(syscall.SIGCONT)
}

func TestBusiestUserOfTheLastFullMinute(t *testing.T) {
	t.Parallel()
	var b busiest
	at := func(s int) time.Time { return time.Unix(1_800_000_000/60*60+int64(s), 0) }
	b.saw(at(0), 3)
	b.saw(at(30), 7)
	b.saw(at(59), 2)
	if got := b.lastMinute(at(59)); got != 0 {
		t.Errorf("%d before a minute is full", got)
	}
	b.saw(at(61), 1)
	if got := b.lastMinute(at(119)); got != 7 {
		t.Errorf("%d, want 7", got)
	}
	if got := b.lastMinute(at(120)); got != 1 {
		t.Errorf("%d, want 1", got)
	}
	if got := b.lastMinute(at(300)); got != 0 {
		t.Errorf("%d after quiet minutes", got)
	}
}
