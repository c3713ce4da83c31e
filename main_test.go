package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// TestMain runs more tests at once than there are cores: those that may run at once wait more than they work, for a
// clock, a browser or a Redis.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// running is streamcap as run runs it, on ports of its own.
type running struct {
	*testing.T
	url, admin, nginxLog string
	signals              chan os.Signal
	exited               chan int
	log                  *logLines
	client               *http.Client
}

// logLines is what the service wrote to stderr.
type logLines struct {
	mu    sync.Mutex
	lines []map[string]any
	text  bytes.Buffer
	more  chan struct{}
}

func (l *logLines) read(r io.Reader) {
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		var line map[string]any
		_ = json.Unmarshal(scanner.Bytes(), &line) // a test that wants JSON asks for a field
		l.mu.Lock()
		l.lines = append(l.lines, line)
		l.text.Write(append(scanner.Bytes(), '\n'))
		close(l.more)
		l.more = make(chan struct{})
		l.mu.Unlock()
	}
}

// find returns the lines whose field has the value.
func (l *logLines) find(field, value string) []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for _, line := range l.lines {
		if got, _ := line[field].(string); strings.Contains(got, value) {
			found = append(found, line)
		}
	}
	return found
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// event waits for the first line of an event.
func (s *running) event(name string) map[string]any {
	s.Helper()
	deadline := time.After(10 * time.Second)
	for {
		s.log.mu.Lock()
		more := s.log.more
		s.log.mu.Unlock()
		if lines := s.log.find("event", name); len(lines) > 0 {
			return lines[0]
		}
		select {
		case <-more:
		case code := <-s.exited:
			s.exited <- code
			s.Fatalf("streamcap exited with %d before the event %s:\n%s", code, name, s.log)
		case <-deadline:
			s.Fatalf("no event %s:\n%s", name, s.log)
		}
	}
}

// warnsOnce wants exactly one line whose field has the value.
func (s *running) warnsOnce(field, value string) {
	s.Helper()
	eventually(s.T, "a line with "+value, func() bool { return len(s.log.find(field, value)) > 0 })
	if lines := s.log.find(field, value); len(lines) > 1 {
		s.Errorf("%d lines with %q within a minute, want 1", len(lines), value)
	}
}

// start runs the service with these settings (NAME=value, without the prefix); it is stopped with the test.
func start(t *testing.T, settings ...string) *running {
	t.Helper()
	return starts(t, func(environ []string, stderr io.Writer, signals <-chan os.Signal) int {
		return run(nil, environ, io.Discard, stderr, signals)
	}, settings...)
}

// starts is start for a program that is run in another way.
func starts(t *testing.T, program func(environ []string, stderr io.Writer, signals <-chan os.Signal) int, settings ...string) *running {
	t.Helper()
	s := &running{
		T: t, signals: make(chan os.Signal, 2), exited: make(chan int, 1), log: &logLines{more: make(chan struct{})},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}},
	}
	environ := []string{"STREAMCAP_LISTEN=127.0.0.1:0", "STREAMCAP_ADMIN_LISTEN=127.0.0.1:0", "STREAMCAP_NGINX_LOG_LISTEN=127.0.0.1:0"}
	for _, setting := range settings {
		environ = append(environ, "STREAMCAP_"+setting)
	}
	r, w := io.Pipe()
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		s.log.read(r)
	}()
	go func() {
		code := program(environ, w, s.signals)
		_ = w.Close()
		<-reading
		s.exited <- code
	}()
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.signals <- syscall.SIGTERM
		if code := <-s.exited; code != exitOK {
			t.Errorf("exit code %d:\n%s", code, s.log)
		}
		s.exited <- exitOK
	})
	started := s.event("started")
	s.url = "http://" + started["listen"].(string)
	s.admin = "http://" + started["admin_listen"].(string)
	s.nginxLog = started["nginx_log_listen"].(string)
	return s
}

// withRedis starts the service on a Redis of its own.
func withRedis(t *testing.T, settings ...string) (*running, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	patient := []string{
		"REDIS_URL=unix://" + server.Socket, "ACQUIRE_TIMEOUT=10s", "HEARTBEAT_TIMEOUT=10s", "RELEASE_TIMEOUT=10s",
	}
	s := start(t, append(patient, settings...)...)
	s.allTested()
	return s, server
}

// allTested waits for the roles' self-tests, which take slots of their own.
func (s *running) allTested() {
	s.Helper()
	for _, role := range slotstore.Roles {
		s.tested(role, "")
	}
}

// eachStore runs a test with each store behind the service.
func eachStore(t *testing.T, test func(*running), settings ...string) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(start(t, settings...))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		service, _ := withRedis(t, settings...)
		test(service)
	})
}

// do sends a request with headers as "Name: value", each as often as it is given.
func (s *running) do(method, path, body string, headers ...string) *http.Response {
	s.Helper()
	var reader io.Reader = http.NoBody
	if body != "" {
		reader = strings.NewReader(body)
	}
	request, err := http.NewRequestWithContext(s.Context(), method, s.url+path, reader)
	if err != nil {
		s.Fatal(err)
	}
	request.Header["User-Agent"] = nil
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			request.Host = value
		}
		request.Header[http.CanonicalHeaderKey(name)] = append(request.Header[http.CanonicalHeaderKey(name)], value)
	}
	response, err := s.client.Do(request)
	if err != nil {
		s.Fatalf("%s %s: %v\n%s", method, path, err, s.log)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response
}

func bodyOf(response *http.Response) string {
	text, _ := io.ReadAll(response.Body) // it is in memory
	return string(text)
}

// acquire asks for a slot and wants this status, X-Stream-Slot and X-Stream-Reason.
func (s *running) acquire(user, id, want string, headers ...string) *http.Response {
	s.Helper()
	return s.wants(want, s.do("GET", "/acquire", "", append(headers, "X-User-Id: "+user, "X-Request-Id: "+id)...))
}

func (s *running) wants(want string, response *http.Response) *http.Response {
	s.Helper()
	got := strings.Join(strings.Fields(response.Status[:3]+" "+response.Header.Get(headerSlot)+" "+response.Header.Get(headerReason)), " ")
	if got != want {
		s.Fatalf("got %q, want %q\n%v\n%s", got, want, response.Header, s.log)
	}
	return response
}

func (s *running) heartbeat(user, id, want string) {
	s.Helper()
	s.wants(want, s.do("POST", "/heartbeat", "", "X-User-Id: "+user, "X-Request-Id: "+id))
}

func (s *running) release(user, id, released string) {
	s.Helper()
	response := s.wants("204", s.do("POST", "/release", "", "X-User-Id: "+user, "X-Request-Id: "+id))
	if got := response.Header.Get(headerReleased); got != released {
		s.Fatalf("released %q, want %q", got, released)
	}
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

func TestVersionHelpAndUnknownCommand(t *testing.T) {
	for _, c := range []struct {
		args   string
		code   int
		output string
	}{
		{"version", exitOK, buildVersion() + "\n"},
		{"help", exitOK, usage},
		{"serv", exitSettings, `there is no command "serv"`},
		{" ", exitSettings, "the command is empty"},
		{"check now", exitSettings, `there is no command "check now"`},
	} {
		var stdout, stderr bytes.Buffer
		args := strings.Fields(c.args)
		if c.args == " " {
			args = []string{""}
		}
		code := run(args, nil, &stdout, &stderr, nil)
		if output := stdout.String() + stderr.String(); code != c.code || !strings.Contains(output, c.output) {
			t.Errorf("%s: exit code %d, %q", c.args, code, output)
		}
	}
}

func TestWrongSettingsExitWith2(t *testing.T) {
	for _, command := range []string{"", "serve", "check"} {
		var stderr bytes.Buffer
		environ := []string{"STREAMCAP_SLOT_TTL=120", "STREAMCAP_LIMIT=3"}
		if code := run(strings.Fields(command), environ, io.Discard, &stderr, nil); code != exitSettings {
			t.Errorf("%q: exit code %d", command, code)
		}
		if !strings.Contains(stderr.String(), "STREAMCAP_SLOT_TTL") || !strings.Contains(stderr.String(), "STREAMCAP_LIMIT") {
			t.Errorf("not all mistakes in\n%s", stderr.String())
		}
	}
}

func TestStopFinishesWhatIsUnderWay_G01(t *testing.T) {
	server := redistest.Start(t)
	s := start(t, "REDIS_URL=unix://"+server.Socket, "ACQUIRE_TIMEOUT=10s")
	s.acquire("u0", "warm", "204 held")
	s.allTested()
	server.Pause()
	answered := make(chan string, 1)
	go func() {
		response := s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1")
		answered <- response.Header.Get(headerSlot)
	}()
	eventually(t, "the acquire is under way", func() bool { return server.Waiting("acquire") == 1 })
	s.signals <- syscall.SIGTERM
	s.event("stopping")
	eventually(t, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	server.Unpause()
	if slot := <-answered; slot != "held" {
		t.Errorf("the acquire that was under way: %q", slot)
	}
	if code := <-s.exited; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	s.exited <- exitOK
}

func TestStopIsBoundedWhereRedisHangs_G01(t *testing.T) {
	server := redistest.Start(t)
	s := start(t, "REDIS_URL=unix://"+server.Socket, "ACQUIRE_TIMEOUT=60s")
	s.acquire("u0", "warm", "204 held")
	s.allTested()
	server.Pause()
	left := make(chan struct{})
	go func() {
		defer close(left)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/acquire", http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		request.Header.Set(headerUser, "u1")
		request.Header.Set(headerRequestID, "r1")
		if response, err := s.client.Do(request); err == nil {
			_ = response.Body.Close()
		}
	}()
	eventually(t, "the acquire is under way", func() bool { return server.Waiting("acquire") == 1 })
	began := time.Now()
	s.signals <- syscall.SIGTERM
	code := <-s.exited
	if took := time.Since(began); code != exitOK || took > 30*time.Second {
		t.Errorf("exit code %d after %s, with a budget of 60 s under way", code, took)
	}
	server.Unpause()
	<-left
	s.exited <- exitOK
}

func TestStopSendsKeptReleasesOnceMoreWhateverTheBreakerSays_R05(t *testing.T) {
	s, server := withRedis(t, "RELEASE_TIMEOUT=50ms")
	s.acquire("u1", "r1", "204 held")
	server.Pause()
	s.wants("202 timeout", s.do("POST", "/release", "", "X-User-Id: u1", "X-Request-Id: r1"))
	s.event("redis_circuit_open")
	server.Unpause()
	s.signals <- syscall.SIGTERM
	if code := <-s.exited; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if n := server.Client.Exists(t.Context(), "streamcap:{u1}:slots").Val(); n != 0 {
		t.Error("the slot is held still")
	}
	s.exited <- exitOK
}

func TestSecondSignalEndsAtOnce_G01(t *testing.T) {
	server := redistest.Start(t)
	s := start(t, "REDIS_URL=unix://"+server.Socket, "ACQUIRE_TIMEOUT=30s")
	s.acquire("u0", "warm", "204 held")
	s.allTested()
	server.Pause()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /acquire HTTP/1.1\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the acquire is under way", func() bool { return server.Waiting("acquire") == 1 })
	s.signals <- syscall.SIGTERM
	s.event("stopping")
	s.signals <- syscall.SIGTERM
	if code := <-s.exited; code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	server.Unpause()
	s.exited <- exitOK
}

func TestSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "sc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "public.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()

	settings := []string{"LISTEN=unix:" + path, "SOCKET_MODE=0660", "NGINX_LOG_LISTEN=unix:" + filepath.Join(dir, "log.sock")}
	s := start(t, settings...)
	if got := s.event("started")["listen"]; got != "unix:"+path {
		t.Errorf("listens on %v", got)
	}
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o660 {
		t.Errorf("socket %v, %v", stat.Mode(), err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"healthcheck"}, []string{"STREAMCAP_LISTEN=unix:" + path}, &stdout, &stderr, nil); code != exitOK || !strings.Contains(stdout.String(), `"status":"ok"`) {
		t.Errorf("healthcheck: %d %s%s", code, stdout.String(), stderr.String())
	}
	stderr.Reset()
	if code := run(nil, []string{"STREAMCAP_LISTEN=unix:" + path, "STREAMCAP_ADMIN_LISTEN=127.0.0.1:0"}, io.Discard, &stderr, nil); code != exitFailure || !strings.Contains(stderr.String(), "in use") {
		t.Errorf("a socket in use: exit code %d\n%s", code, stderr.String())
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run(nil, []string{"STREAMCAP_LISTEN=unix:" + file}, io.Discard, &stderr, nil); code != exitFailure {
		t.Errorf("a file that is no socket: exit code %d", code)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file is lost: %v", err)
	}
}

func TestHealthcheckReadsListenAlone(t *testing.T) {
	s := start(t)
	environ := []string{"STREAMCAP_LISTEN=" + strings.TrimPrefix(s.url, "http://"), "STREAMCAP_SLOT_TTL=nonsense"}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"healthcheck"}, environ, &stdout, &stderr, nil); code != exitOK {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.url, "http://"))
	for _, address := range []string{"0.0.0.0:" + port, ":" + port} {
		if code := run([]string{"healthcheck"}, []string{"STREAMCAP_LISTEN=" + address}, &stdout, &stderr, nil); code != exitOK {
			t.Errorf("%s: exit code %d, %s", address, code, stderr.String())
		}
	}
	if code := run([]string{"healthcheck"}, []string{"STREAMCAP_LISTEN=127.0.0.1:1"}, &stdout, &stderr, nil); code != exitFailure {
		t.Errorf("nobody there: exit code %d", code)
	}
	if got := reachable(listenAddress{"tcp", "[::]:9180"}); got.Address != "[::1]:9180" {
		t.Errorf("[::] is reached at %s", got.Address)
	}
}

// pipeListener hands out the far ends of pipes.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (pipeListener) Close() error   { return nil }
func (pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func TestIdleConnectionOutlivesNginxAndPools_N16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := mustLoad(t)
		store := openStore(cfg, slotstore.Events{})
		server := newPublicServer(serviceOn(cfg, store).publicHandler(), zerolog.Nop())
		listener := pipeListener{make(chan net.Conn)}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		near, far := net.Pipe()
		listener.conns <- far
		reader := bufio.NewReader(near)
		for _, idle := range []time.Duration{0, 61 * time.Second, 76 * time.Second, 91 * time.Second} {
			time.Sleep(idle)
			if _, err := io.WriteString(near, "GET /acquire HTTP/1.1\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n\r\n"); err != nil {
				t.Fatalf("after %s: %v", idle, err)
			}
			response, err := http.ReadResponse(reader, nil)
			if err != nil || response.StatusCode != http.StatusNoContent {
				t.Fatalf("after %s: %v, %v", idle, response, err)
			}
			_ = response.Body.Close()
		}
		// A connection that says nothing is not kept for ever.
		if _, err := reader.ReadByte(); err != io.EOF {
			t.Errorf("an idle connection ends with %v", err)
		}
		close(listener.conns)
		<-served
	})
}
