package leanhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"streamcap/leanhttp"
)

var reads = []string{"X-User-Id", "X-Request-Id", "User-Agent", "Authorization"}

// lean is the answer's header for a request that net/http did not serve: its context never ends.
const lean = "X-Lean"

// tell answers with all that it may see of a request, and a status and headers that the request names.
func tell(w http.ResponseWriter, r *http.Request) {
	if r.Context().Done() == nil {
		w.Header().Set(lean, "yes")
	}
	w.Header().Set("Cache-Control", "no-store")
	switch strings.Trim(r.URL.Path, "/") {
	case "empty":
		w.WriteHeader(http.StatusNoContent)
		return
	case "refused":
		w.WriteHeader(http.StatusForbidden)
		return
	case "panic":
		panic("as told")
	}
	body, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprintf(w, "%s %q %q %s %q %d %q %v\n", r.Method, r.URL.Path, r.RequestURI, r.Proto, r.Host, r.ContentLength, body, err)
	for _, name := range reads {
		fmt.Fprintf(w, "%s %q\n", name, r.Header[name])
	}
}

type server interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
}

func plain(handler http.HandlerFunc) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
}

// serve returns where it serves, until the test ends.
func serve(tb testing.TB, s server) (address string) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			tb.Error(err)
		}
	})
	return listener.Addr().String()
}

func dial(tb testing.TB, address string) *net.TCPConn {
	tb.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn.(*net.TCPConn) //nolint:forcetypeassert // it is one
}

var date = regexp.MustCompile(`\r\nDate: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n`)

// talk sends these bytes, in as many writes, closes its half and returns all that comes back, without the date.
func talk(tb testing.TB, address string, writes ...string) string {
	tb.Helper()
	conn := dial(tb, address)
	for _, text := range writes {
		_, _ = io.WriteString(conn, text) // it may have been refused already
	}
	_ = conn.CloseWrite()
	answer, _ := io.ReadAll(conn) // likewise
	return date.ReplaceAllString(string(answer), "\r\n")
}

const usual = "GET /usual HTTP/1.1\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\nHost: streamcap\r\nUser-Agent: Mozilla/5.0 (é)\r\n\r\n"

// requests are well-formed or not; true for those that net/http need not see.
var requests = map[string]bool{
	usual:                                    true,
	strings.ToLower(usual[:4]) + usual[4:]:   false,
	"GET /empty HTTP/1.1\r\nHost: x\r\n\r\n": true,
	"GET /refused/ HTTP/1.1\r\nHost: x:80\r\nConnection: Keep-Alive\r\n\r\n":               true,
	"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nx-user-id:u1\r\n\r\n":             true,
	"PUT //a// HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User-Id:   a b  \r\n\r\n":                  true,
	"DELETE / HTTP/1.1\r\nHost: x\r\nX-User-Id:\r\nAccept: */*\r\n\r\n":                    true,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: \xff\xfe\r\n\r\n":                            true,
	"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n":                                                  false,
	"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n":                                                false,
	"GET /a HTTP/1.0\r\nHost: x\r\n\r\n":                                                   false,
	"GET /a HTTP/1.1\r\n\r\n":                                                              false,
	"GET /a HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n":                                        false,
	"GET /a HTTP/1.1\r\nHost:\r\n\r\n":                                                     false,
	"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n":                                                 false,
	"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n":                                                 false,
	"GET /%61 HTTP/1.1\r\nHost: x\r\n\r\n":                                                 false,
	"GET a HTTP/1.1\r\nHost: x\r\n\r\n":                                                    false,
	"GET http://y/a HTTP/1.1\r\nHost: x\r\n\r\n":                                           false,
	"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n":                                                  false,
	"GET /a HTTP/1.1 \r\nHost: x\r\n\r\n":                                                  false,
	"GET /a HTTP/1.1\nHost: x\n\n":                                                         false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\nX-Request-Id: b\r\n\r\n":                  false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\r\n b\r\n\r\n":                             false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\tb\r\n\r\n":                                false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\x00b\r\n\r\n":                              false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\rb\r\n\r\n":                                false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id : a\r\n\r\n":                                  false,
	"GET /a HTTP/1.1\r\nHost: x\r\n X-User-Id: a\r\n\r\n":                                  false,
	"GET /a HTTP/1.1\r\nHost: x\r\n: a\r\n\r\n":                                            false,
	"GET /a HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n":                                        false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: a\r\nx-user-id: b\r\n\r\n":                   false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX_User_Id: a\r\n\r\n":                                   false,
	"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                              false,
	"GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n":            false,
	"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade:\r\n\r\n":                                       false,
	"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 00\r\n\r\n":                            false,
	"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab":                           false,
	"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n":                            false,
	"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nExpect: nothing\r\n\r\n":          false,
	"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":           false,
	"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n":                          false,
	"GET /a HTTP/1.1\r\nHost: x\r\nX-User-Id: " + strings.Repeat("u", 60_000) + "\r\n\r\n": false,
	"GET /a HTTP/1.1\r\nHost: x\r\n":                                                       false,
	"GET /empty HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n":             false,
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                     false,
	"\x16\x03\x01":                                                                         false,
	"":                                                                                     false,
}

// pair are a net/http server and one of this package with the same handler.
func pair(tb testing.TB) (wanted, got string) {
	tb.Helper()
	return serve(tb, plain(tell)), serve(tb, &leanhttp.Server{Server: plain(tell), Reads: reads})
}

const saysLean = lean + ": yes\r\n"

func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	wanted, got := pair(t)
	for request, isLean := range requests {
		want, answer := talk(t, wanted, request), talk(t, got, request)
		if strings.Contains(answer, saysLean) != isLean {
			t.Errorf("%.80q: net/http has served it: %t, want %t", request, isLean, !isLean)
		}
		if answer = strings.ReplaceAll(answer, saysLean, ""); answer != want {
			t.Errorf("%.80q: answered\n%q, net/http says\n%q", request, answer, want)
		}
	}
}

// FuzzAnswersAreThoseOfNetHTTP: whatever comes, both say the same.
func FuzzAnswersAreThoseOfNetHTTP(f *testing.F) {
	for request := range requests {
		f.Add([]byte(request))
	}
	wanted, got := pair(f)
	f.Fuzz(func(t *testing.T, request []byte) {
		want, answer := talk(t, wanted, string(request)), talk(t, got, string(request))
		if answer = strings.ReplaceAll(answer, saysLean, ""); answer != want {
			t.Errorf("%q: answered\n%q, net/http says\n%q", request, answer, want)
		}
	})
}

func TestConnectionGoesOnWithNetHTTP(t *testing.T) {
	_, address := pair(t)
	conn := dial(t, address)
	answers := bufio.NewReader(conn)
	ask := func(request string, isLean bool) {
		t.Helper()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body) // it is short
		if _, err := time.Parse(http.TimeFormat, response.Header.Get("Date")); err != nil || (response.Header.Get(lean) != "") != isLean {
			t.Errorf("%q: answered %+v", request, response.Header)
		}
	}
	ask(usual, true)
	ask("GET /empty HTTP/1.1\r\nHost: x\r\n\r\n", true)
	ask("GET /refused HTTP/1.1\r\nHost: x\r\n\r\n", true)
	ask(usual, true)
	half := len(usual) / 2
	for _, part := range []string{usual[:half], usual[half:]} { // two reads, unless the machine is slow
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
	}
	if response, err := http.ReadResponse(answers, nil); err != nil {
		t.Fatal(err)
	} else {
		_, _ = io.Copy(io.Discard, response.Body)
	}
	ask("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", false)
	ask(usual, false)
}

func TestHeadersOfARequestAreNotThoseOfTheLast(t *testing.T) {
	_, address := pair(t)
	conn := dial(t, address)
	answers := bufio.NewReader(conn)
	for _, request := range []string{usual, "GET /usual HTTP/1.1\r\nHost: other\r\nAuthorization: Bearer x\r\n\r\n"} {
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		if own := strings.Contains(request, "X-User-Id"); strings.Contains(string(body), "u1") != own || strings.Contains(string(body), "Bearer") == own {
			t.Errorf("%q: seen as %s", request, body)
		}
	}
}

func TestPanicEndsItsConnectionAlone(t *testing.T) {
	said := make(lines, 1)
	s := &leanhttp.Server{Server: plain(tell), Reads: reads}
	s.ErrorLog = stdlog.New(said, "", 0)
	address := serve(t, s)
	if answer := talk(t, address, "GET /panic HTTP/1.1\r\nHost: x\r\n\r\n"); answer != "" {
		t.Errorf("answered %q", answer)
	}
	if answer := talk(t, address, usual); !strings.Contains(answer, saysLean) {
		t.Errorf("then answered %q", answer)
	}
	select {
	case line := <-said:
		if !strings.Contains(line, "as told") {
			t.Errorf("logged %q", line)
		}
	case <-time.After(10 * time.Second):
		t.Error("logged nothing")
	}
}

// lines takes a log, line by line.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestShutdownLetsRequestsEnd(t *testing.T) {
	for _, age := range []time.Duration{0, 4 * time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			asked, answer := make(chan struct{}), make(chan struct{})
			s := &leanhttp.Server{Server: plain(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					close(asked)
					<-answer
				}
				tell(w, r)
			}), Reads: reads}
			l := pipes{make(chan net.Conn), make(chan struct{})}
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			idle, slow := l.dial(), l.dial()
			ask := func(conn net.Conn, path string) *bufio.Reader {
				if _, err := io.WriteString(conn, strings.Replace(usual, "/usual", path, 1)); err != nil {
					t.Fatal(err)
				}
				return bufio.NewReader(conn)
			}
			if _, err := http.ReadResponse(ask(idle, "/empty"), nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(age)
			answers := ask(slow, "/slow")
			<-asked
			shut := make(chan error, 1)
			go func() { shut <- s.Shutdown(context.Background()) }()
			if _, err := io.ReadAll(idle); err != nil {
				t.Errorf("the idle connection ends with %v", err)
			}
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
			time.Sleep(3 * time.Second)
			select {
			case err := <-shut:
				t.Errorf("%s: shut down with %v while a request was under way", age, err)
			default:
			}
			close(answer)
			text, err := io.ReadAll(answers)
			if err != nil || !strings.Contains(string(text), saysLean) || !strings.Contains(string(text), "\r\nConnection: close\r\n") {
				t.Errorf("%s: the request under way was answered %q, %v", age, text, err)
			}
			if err := <-shut; err != nil {
				t.Error(err)
			}
		})
	}
}

// pipes are a listener whose clock a test can move.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.closed); return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func TestCloseCutsRequestsOff(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := &leanhttp.Server{Server: plain(func(http.ResponseWriter, *http.Request) { close(asked); <-answer }), Reads: reads}
	address := serve(t, s)
	defer close(answer)
	conn := dial(t, address)
	if _, err := io.WriteString(conn, usual); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
		t.Errorf("answered %q, %v", answer, err)
	}
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := &leanhttp.Server{Server: plain(func(http.ResponseWriter, *http.Request) { close(asked); <-answer }), Reads: reads}
	address := serve(t, s)
	t.Cleanup(func() { close(answer) }) // before the server's own
	if _, err := io.WriteString(dial(t, address), usual); err != nil {
		t.Fatal(err)
	}
	<-asked
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Shutdown(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("shut down with %v", err)
	}
}

func TestRequestAllocatesLittle(t *testing.T) {
	address := serve(t, &leanhttp.Server{Server: plain(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), Reads: reads})
	ask := asking(t, address)
	if got := testing.AllocsPerRun(500, ask); got > 1 {
		t.Errorf("%.0f allocations for a request and its answer", got)
	}
}

func BenchmarkRequest(b *testing.B) {
	handler := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	for name, s := range map[string]server{"leanhttp": &leanhttp.Server{Server: plain(handler), Reads: reads}, "nethttp": plain(handler)} {
		b.Run(name, func(b *testing.B) {
			ask := asking(b, serve(b, s))
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}

// asking returns a function that asks again on the same connection.
func asking(tb testing.TB, address string) func() {
	tb.Helper()
	conn := dial(tb, address)
	_ = conn.SetDeadline(time.Time{})
	request, answer := []byte(usual), make([]byte, 4096)
	return func() {
		if _, err := conn.Write(request); err != nil {
			tb.Fatal(err)
		}
		if n, err := conn.Read(answer); err != nil || !bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 204 ")) {
			tb.Fatalf("%q, %v", answer[:n], err)
		}
	}
}
