package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/rs/zerolog"

	"streamcap/slotstore/redistest"
)

// unread is a response that nobody reads.
type unread struct{ header http.Header }

func (u unread) Header() http.Header         { return u.header }
func (u unread) Write(b []byte) (int, error) { return len(b), nil }
func (u unread) WriteHeader(int)             {}

// acquiring returns a handler's acquires, as nginx.conf.example sends them: most take a new slot.
func acquiring(tb testing.TB, environ ...string) (acquire func(n int)) {
	tb.Helper()
	cfg, err := loadConfig(append(environ, "STREAMCAP_DEFAULT_LIMIT=-1"))
	if err != nil {
		tb.Fatal(err)
	}
	s := newService(cfg, zerolog.Nop())
	tb.Cleanup(func() { s.store.Close() })
	handler := s.publicHandler()
	request := httptest.NewRequest(http.MethodGet, "/acquire", nil)
	id := []string{""}
	request.Header = http.Header{
		headerUser: {"u-1001"}, headerRequestID: id, headerPlan: {"paid"}, headerOriginalMethod: {"GET"}, headerRealIP: {"203.0.113.9"},
		headerOriginalURI: {"/api/chat/stream"},
		headerUserAgent:   {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0 Safari/537.36"},
	}
	return func(n int) {
		id[0] = strconv.Itoa(n % 100)
		w := unread{make(http.Header, 8)}
		handler.ServeHTTP(w, request)
		if slot := w.header[headerSlot]; len(slot) != 1 || slot[0] != "held" {
			tb.Fatalf("answered %v", w.header)
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	for store, environ := range map[string][]string{"memory": nil, "redis": {"STREAMCAP_REDIS_URL=unix://" + redistest.Start(b).Socket}} {
		b.Run(store, func(b *testing.B) {
			acquire := acquiring(b, environ...)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				acquire(n)
			}
		})
	}
}

// With Redis it is the worst case: an acquire that shares its pipeline with no other. Times are noise, and have no bound.
func TestAcquireAllocatesLittle(t *testing.T) {
	for store, most := range map[string]float64{"memory": 8, "redis": 66} {
		environ := []string{}
		if store == "redis" {
			environ = append(environ, "STREAMCAP_REDIS_URL=unix://"+redistest.Start(t).Socket, "STREAMCAP_ACQUIRE_TIMEOUT=10s")
		}
		acquire := acquiring(t, environ...)
		n := 0
		got := testing.AllocsPerRun(500, func() { n++; acquire(n) })
		t.Logf("%s: %.0f allocations for an acquire", store, got)
		if got > most {
			t.Errorf("%s: %.0f allocations for an acquire, at most %.0f are let", store, got, most)
		}
	}
}
