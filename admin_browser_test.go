package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	cdplog "github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"streamcap/slotstore/redistest"
)

// The tests of this file use the admin page as an operator does: in Debian's chromium.

// browser is a chromium with one page, which signs in when it is asked to.
type browser struct {
	*testing.T
	ctx         context.Context //nolint:containedctx // chromedp keeps the browser in it
	name, token string
	asked       atomic.Int32 // for a sign-in

	mu         sync.Mutex
	complaints []string // dialogs, exceptions, and what its console said
}

// otherHost is a name that the chromium of the tests finds on this machine, and takes for no loopback.
const otherHost = "ops.example"

// chromium is the one that the tests of this file share, for as long as one of them runs.
var chromium struct {
	mu    sync.Mutex
	first func() context.Context // its first page, which keeps it open
	close func()
	users int
}

// sharedChromium starts it where it does not run yet.
func sharedChromium(t *testing.T) context.Context {
	t.Helper()
	chromium.mu.Lock()
	defer chromium.mu.Unlock()
	if chromium.users == 0 {
		// Chromium runs as root without its sandbox alone; it sees nothing but this machine.
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox,
			chromedp.Flag("host-resolver-rules", "MAP "+otherHost+" 127.0.0.1"))
		allocator, closeAll := chromedp.NewExecAllocator(context.Background(), options...)
		page, closePage := chromedp.NewContext(allocator)
		if err := chromedp.Do(page); err != nil {
			t.Fatalf("chromium does not start (apt-get install chromium): %v", err)
		}
		chromium.first = func() context.Context { return page }
		chromium.close = func() {
			closePage()
			closeAll()
		}
	}
	chromium.users++
	t.Cleanup(func() {
		chromium.mu.Lock()
		defer chromium.mu.Unlock()
		if chromium.users--; chromium.users == 0 {
			chromium.close()
		}
	})
	return chromium.first()
}

// openBrowser opens a page with a profile of its own: who is signed in elsewhere is not here.
func openBrowser(t *testing.T, name, token string) *browser {
	t.Helper()
	ctx, closePage := chromedp.NewContext(sharedChromium(t), chromedp.WithNewBrowserContext())
	ctx, giveUp := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() {
		giveUp()
		closePage()
	})
	b := &browser{T: t, ctx: ctx, name: name, token: token}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatalf("chromium opens no page: %v", err)
	}
	yes := true
	call(b, fetch.Enable, fetch.EnableParams{HandleAuthRequests: &yes})
	call(b, cdplog.Enable, cdp.Empty{})
	return b
}

// call sends one command of the protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.Fatal(err)
	}
}

// heard takes what the browser tells. It must not wait for the browser.
func (b *browser) heard(event any) {
	complain := func(format string, args ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
	}
	switch event := event.(type) {
	case *fetch.EventRequestPaused:
		go func() {
			_, _ = chromedp.Call(b.ctx, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: event.RequestID})
		}()
	case *fetch.EventAuthRequired:
		answer := &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseProvideCredentials, Username: b.name, Password: b.token}
		if b.asked.Add(1) > 1 {
			answer = &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseCancelAuth}
		}
		params := fetch.ContinueWithAuthParams{RequestID: event.RequestID, AuthChallengeResponse: answer}
		go func() { _, _ = chromedp.Call(b.ctx, fetch.ContinueWithAuth, params) }()
	case *cdppage.EventJavascriptDialogOpening:
		complain("a dialog: %s", event.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *cdpruntime.EventExceptionThrown:
		complain("an exception: %s", event.ExceptionDetails.Text)
	case *cdplog.EventEntryAdded:
		complain("the console: %s %s", event.Entry.Text, event.Entry.URL)
	}
}

// run does one thing after the other.
func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatalf("%v\n%s", err, b.said())
	}
}

// value does one thing that has a result.
func value[T any](b *browser, action chromedp.Action[T]) T {
	b.Helper()
	result, err := chromedp.Run(b.ctx, action)
	if err != nil {
		b.Fatalf("%v\n%s", err, b.said())
	}
	return result
}

func (b *browser) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.complaints, "\n")
}

// quiet wants that the page complained of nothing.
func (b *browser) quiet() {
	b.Helper()
	if said := b.said(); said != "" {
		b.Errorf("the browser complains:\n%s", said)
	}
}

// is evaluates an expression of the page.
func (b *browser) is(expression string) bool {
	b.Helper()
	return value(b, chromedp.Evaluate[bool]("!!("+expression+")"))
}

// does runs statements in the page.
func (b *browser) does(statements string) {
	b.Helper()
	b.is("(() => { " + statements + "; return true })()")
}

// becomes waits until an expression of the page holds.
func (b *browser) becomes(expression string) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); !b.is(expression); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("never: %s\n%s\n%s", expression, b.text("body"), b.said())
		}
	}
}

func (b *browser) text(selector string) string {
	b.Helper()
	return value(b, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q).innerText", selector)))
}

// click presses something with the mouse, also where a refresh puts another in its place meanwhile.
func (b *browser) click(selector string) {
	b.Helper()
	err := errors.New("never tried")
	for try := 0; err != nil && try < 5; try++ {
		err = chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS(selector)))
	}
	if err != nil {
		b.Fatalf("click on %s: %v", selector, err)
	}
}

// shows is an expression: the part of the page holds the text.
func shows(selector, text string) string {
	return fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", selector, text)
}

// releaseAll presses the button, gives the reason with the keyboard alone, and confirms with Enter.
func (b *browser) releaseAll(reason string) {
	b.Helper()
	b.becomes("document.documentElement.classList.contains('scripted-on')")
	b.click("#release-all")
	b.becomes("document.getElementById('confirm').open && document.activeElement.id === 'reason'")
	b.run(chromedp.KeyEvent(reason + "\r"))
}

// threeStreams takes three slots of a user, as nginx would.
func (s *running) threeStreams(user string) {
	s.Helper()
	for n, agent := range []string{
		"Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "okhttp/5.3.2",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.1 Mobile/15E148 Safari/604.1",
	} {
		id := fmt.Sprintf("%dc5f2e8a91b34d7f8e6a0b1c2d3e4f50", n)
		s.acquire(user, id, "204 held", "X-Stream-Limit: 3", "X-Real-IP: 203.0.113."+fmt.Sprint(n+7),
			"X-Original-URI: /v1/chat/completions", "User-Agent: "+agent)
	}
	s.heartbeat(user, "0c5f2e8a91b34d7f8e6a0b1c2d3e4f50", "204")
}

// startBinary is start for the program that `make build` makes.
func startBinary(t *testing.T, settings ...string) *running {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "streamcap")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return starts(t, func(environ []string, stderr io.Writer, signals <-chan os.Signal) int {
		program := exec.CommandContext(context.Background(), binary)
		program.Env, program.Stderr = environ, stderr
		if err := program.Start(); err != nil {
			fmt.Fprintln(stderr, err)
			return exitFailure
		}
		go func() { _ = program.Process.Signal(<-signals) }()
		_ = program.Wait() // its exit code tells
		return program.ProcessState.ExitCode()
	}, settings...)
}

// streams are a backend's, behind nginx.
type streams struct {
	*testing.T
	url     string
	started chan http.Header // what nginx handed the backend
	running atomic.Int32
}

func streamsBehindNginx(s *running, hostile string) *streams {
	s.Helper()
	all := &streams{T: s.T, started: make(chan http.Header, 100)}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all.running.Add(1)
		defer all.running.Add(-1)
		_, _ = w.Write([]byte("data: hello\n\n"))
		_ = http.NewResponseController(w).Flush()
		all.started <- r.Header
		<-r.Context().Done()
	}))
	s.Cleanup(backend.Close)
	all.url = gatedByNginx(s, backend, hostile)
	return all
}

// open starts a stream that runs until the test ends, and returns its request id; where nginx gave up on a sidecar that a
// busy machine held up, it ends that one and tries again.
func (s *streams) open(key, agent string) (id string) {
	s.Helper()
	for range 20 {
		ctx, end := context.WithCancel(context.Background())
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/stream/chat?secret=1", http.NoBody)
		if err != nil {
			s.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		request.Header.Set("User-Agent", agent)
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			end()
			_ = response.Body.Close()
		})
		if response.StatusCode != http.StatusOK {
			s.Fatalf("a stream of %s: %s %s", key, response.Status, bodyOf(response))
		}
		if got := <-s.started; got.Get(headerSlot) == "held" {
			return got.Get(headerRequestID)
		}
		end()
	}
	s.Fatalf("a stream of %s gets no slot", key)
	return ""
}

// denied wants that no further stream starts.
func (s *streams) denied(key string) {
	s.Helper()
	eventually(s.T, "a further stream is denied", func() bool {
		ctx, end := context.WithCancel(s.Context())
		defer end()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/stream/chat", http.NoBody)
		if err != nil {
			s.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			s.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusOK { // nginx gave up on a sidecar that a busy machine held up
			<-s.started
		}
		return response.StatusCode == http.StatusTooManyRequests && bodyOf(response) == `{"error":"stream_limit_reached","limit":3,"used":3}`
	})
}

// The whole of it: streams through nginx.conf.example and the program itself, and an operator in a browser.
func TestOperatorReleasesAllInABrowser_P04(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := startBinary(t, operators(), "AUDIT_LOG="+auditFile(t), "LIMITS=free:1,paid:3", "REDIS_URL=unix://"+server.Socket,
		"ACQUIRE_TIMEOUT=10s", "HEARTBEAT_TIMEOUT=10s", "RELEASE_TIMEOUT=10s", "ADMIN_TIMEOUT=10s")
	const user, hostile = "u-paid", `<img src=x onerror=alert(1)>`
	streams := streamsBehindNginx(s, hostile)
	ids := []string{
		streams.open("demo-paid", "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"),
		streams.open("demo-paid", "okhttp/5.3.2"), streams.open("demo-paid", "curl/8.17.0"),
	}
	s.heartbeat(user, ids[0], "204")
	s.wantsSlots(user, 3)
	streams.denied("demo-paid")
	streams.open("hostile", hostile)

	b := openBrowser(t, "alice", aliceToken)
	b.run(chromedp.Navigate(s.admin+"/admin/"), chromedp.WaitVisible(chromedp.CSS("#user")))
	b.becomes(shows("#users", user))
	b.becomes(shows("#users", hostile))
	b.run(chromedp.SendKeys(chromedp.CSS("#user"), user+"\r"))
	b.becomes(shows("#slots", "3 live slots, limit 3"))
	got := b.text("#slots")
	for _, want := range append(ids, "at the limit", "/stream/chat", "127.0.0.1", "Firefox/145.0", "okhttp/5.3.2", "curl/8.17.0") {
		if !strings.Contains(got, want) {
			t.Errorf("the slots lack %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("a query is shown:\n%s", got)
	}
	// It counts down by itself, also while no refresh takes away what the operator is about to copy.
	b.does("getSelection().selectAllChildren(document.querySelector('#slots .id'))")
	before := b.text("[data-left]")
	for range 2 {
		b.becomes(fmt.Sprintf("document.querySelector('[data-left]').textContent !== %q", before))
		before = b.text("[data-left]")
	}
	if !strings.HasPrefix(before, "1 min") {
		t.Errorf("it counts to %s", before)
	}
	s.heartbeat(user, ids[2], "204")
	value(b, chromedp.Evaluate[bool]("refresh(); loading.then(() => true)", chromedp.EvalAwaitPromise))
	if !b.is("/^[0-9a-f]{32}/.test(getSelection().toString())") {
		t.Error("a refresh has taken the selection away")
	}
	b.does("getSelection().removeAllRanges()")

	// Escape, and no reason, release nothing.
	b.click("#release-all")
	b.becomes("document.getElementById('confirm').open")
	if got := b.text("#confirm"); !strings.Contains(got, "Release all 3 slots of "+user+"?") || !strings.Contains(got, "not cut") || !strings.Contains(got, "410") {
		t.Errorf("the dialog:\n%s", got)
	}
	b.run(chromedp.KeyEvent("\r"))
	time.Sleep(50 * time.Millisecond)
	b.run(chromedp.KeyEvent("\x1b"))
	b.becomes("!document.getElementById('confirm').open && document.activeElement.id === 'release-all'")
	s.wantsSlots(user, 3)

	// One, then all.
	b.click("#release-" + ids[1])
	b.becomes(shows("#confirm", "Release slot "+ids[1]+" of "+user+"?"))
	b.run(chromedp.KeyEvent("one tab\r"))
	b.becomes(shows("#said", "Released 1 slot of "+user+"."))
	b.becomes(shows("#slots", "2 live slots, limit 3"))
	b.releaseAll("ticket 4711: one tab open")
	b.becomes(shows("#said", "Released 2 slots of "+user+". Running streams are not cut."))
	b.becomes(shows("#slots", "0 live slots"))
	b.becomes(shows("#audit", "ticket 4711: one tab open"))
	b.becomes("!(" + shows("#users", user) + ")")
	if !b.is("document.activeElement.id === 'said'") {
		t.Error("the focus is lost")
	}
	left := []string{ids[0], ids[2]}
	slices.Sort(left)
	s.audited(user, "ticket 4711: one tab open", "released", left...)
	for _, id := range ids {
		s.heartbeat(user, id, "410 not_held")
	}
	s.wantsSlots(user, 0)
	if running := streams.running.Load(); running != 4 {
		t.Errorf("%d streams run, want all 4", running)
	}
	// A new one starts, and appears by itself.
	streams.open("demo-paid", "curl/8.17.0")
	b.becomes(shows("#slots", "1 live slot, limit 3"))
	b.quiet()
}

func TestWrongPasswordInABrowser_P06(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	b := openBrowser(t, "alice", "wrong")
	b.run(chromedp.Navigate(s.admin + "/admin/"))
	if got := b.text("body"); !strings.Contains(got, "sign in with an operator's name") || b.is("document.getElementById('main')") {
		t.Errorf("it shows\n%s", got)
	}
	if b.asked.Load() != 2 {
		t.Errorf("it was asked %d times, want twice", b.asked.Load())
	}
}

func TestOtherSitesInABrowser_P01(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	s.acquire("u1", "r1", "204 held")
	b := openBrowser(t, "alice", aliceToken)
	b.run(chromedp.Navigate(s.admin + "/admin/"))
	// The browser is signed in now, and goes to another site.
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/frame" {
			fmt.Fprintf(w, `<iframe src="%s/admin/"></iframe>`, s.admin)
			return
		}
		fmt.Fprintf(w, `<form method="post" enctype="text/plain" action="%s/admin/api/release?user=u1"><input name='{"reason":"form","x":"' value='"}'></form>`, s.admin)
	}))
	t.Cleanup(evil.Close)
	b.run(chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)))
	for _, options := range []string{
		`mode: 'no-cors', headers: {'Content-Type': 'text/plain'}`,
		`headers: {'Content-Type': 'application/json'}`,
		`headers: {'Content-Type': 'application/json', 'X-Page-Token': 'x'}`,
	} {
		ended := value(b, chromedp.Evaluate[string](fmt.Sprintf(
			`fetch('%s/admin/api/release', {method: 'POST', credentials: 'include', body: '{"user":"u1","reason":"fetch"}', %s}).then(() => 'sent', () => 'refused')`,
			s.admin, options), chromedp.EvalAwaitPromise))
		t.Logf("fetch with %s: %s", options, ended)
	}
	b.does("document.forms[0].submit()")
	b.becomes("document.body.innerText.includes('403')")
	s.wantsSlots("u1", 1)
	trail := s.trail()
	if len(trail) == 0 || trail[0].User != "u1" { // by the form; this browser sends fetches across sites signed out, if at all
		t.Errorf("trail %+v", trail)
	}
	for _, entry := range trail {
		if entry.Result != "refused" {
			t.Errorf("audited %+v", entry)
		}
	}
	b.run(chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1) + "/frame"))
	b.becomes(`document.querySelector('iframe') && document.readyState === 'complete'`)
	if !strings.Contains(b.said(), "frame-ancestors") {
		t.Errorf("framed:\n%s", b.said())
	}
}

func TestHostileUserInABrowser_P07(t *testing.T) {
	t.Parallel()
	s, _ := withRedis(t, operators())
	const hostile = `<img src=x onerror=alert(1)>`
	users := []string{hostile, `"><script>alert(1)</script>`, "byte\xff", "a+b &c=%41"}
	for _, user := range users {
		s.acquire(user, "r1", "204 held", "X-Stream-Limit: 3", "X-Real-IP: "+user, "X-Original-URI: "+user, "User-Agent: "+user)
	}
	b := openBrowser(t, "alice", aliceToken)
	b.run(chromedp.Navigate(s.admin+"/admin/"), chromedp.WaitVisible(chromedp.CSS("#user")))
	b.run(chromedp.SendKeys(chromedp.CSS("#user"), hostile+"\r"))
	b.becomes(shows("#slots", hostile))
	b.releaseAll(hostile)
	b.becomes(shows("#said", "Released 1 slot of "+hostile))
	b.becomes(shows("#audit .reason", hostile))
	for _, user := range users[1:] {
		b.does(fmt.Sprintf(`[...document.querySelectorAll('#users a')].find((a) => a.textContent === %s).click()`, "String.raw`"+legible(user)+"`"))
		b.becomes(shows("#slots-title", legible(user)))
		b.becomes(shows("#slots", "1 live slot, limit 3"))
		b.releaseAll("x")
		b.becomes(shows("#said", "Released 1 slot of "+legible(user)))
		s.wantsSlots(user, 0)
	}
	if b.is("document.querySelector('img[src=x]') || document.querySelector('script:not([src])')") {
		t.Error("a user has become an element")
	}
	b.quiet()
}

// behindNginx serves the admin listener below /ops/cap/ as the shortest nginx.conf does: with a Host that is the
// listener's, not the browser's. It returns nginx's port.
func behindNginx(s *running) (port string) {
	s.Helper()
	port = redistest.FreePort(s.T)
	startNginx(s, port, s.TempDir(), "pid nginx.pid;\nevents {}\nhttp {\naccess_log off;\n"+
		"server { listen 127.0.0.1:"+port+"; location /ops/cap/ { proxy_pass "+s.admin+"/; } } }\n")
	return port
}

// gatedByNginx serves a backend behind nginx.conf.example, of which nothing but ports and paths is replaced. It returns
// nginx's address. Who has the key "hostile" is called by that.
func gatedByNginx(s *running, backend *httptest.Server, hostile string) (url string) {
	s.Helper()
	dir, port := s.TempDir(), redistest.FreePort(s.T)
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	conf := strings.NewReplacer(
		"/run/nginx.pid", "nginx.pid", "/var/log/nginx/", dir+"/", "/etc/nginx/streamcap/", dir+"/", "listen 8080;", "listen 127.0.0.1:"+port+";",
		"127.0.0.1:9180", host(s.url), "127.0.0.1:9514", s.nginxLog, "127.0.0.1:9000", host(backend.URL),
	).Replace(readText(s.T, "nginx.conf.example"))
	if err := os.WriteFile(filepath.Join(dir, "keys-test.map"), []byte(`"Bearer hostile" "`+hostile+"\";\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	startNginx(s, port, dir, conf)
	return "http://127.0.0.1:" + port
}

// startNginx runs nginx with this configuration until the test ends. What it writes for itself goes to the directory.
func startNginx(s *running, port, dir, conf string) {
	s.Helper()
	temporary := "http {"
	for _, what := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("\n%s_temp_path %s/%s;", what, dir, what)
	}
	conf = strings.Replace(conf, "http {", temporary, 1)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600); err != nil {
		s.Fatal(err)
	}
	global := "daemon off;"
	if os.Geteuid() == 0 {
		global += " user root;" // the directory is root's
	}
	nginx := exec.CommandContext(context.Background(), "/usr/sbin/nginx", "-e", "stderr", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-g", global)
	var said bytes.Buffer
	nginx.Stderr = &said
	if err := nginx.Start(); err != nil {
		s.Fatalf("nginx does not start (apt-get install nginx): %v", err)
	}
	s.Cleanup(func() {
		_ = nginx.Process.Signal(syscall.SIGTERM)
		if err := nginx.Wait(); err != nil {
			s.Errorf("nginx: %v\n%s", err, said.String())
		}
	})
	eventually(s.T, "nginx listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func TestPageBehindNginxInABrowser(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	port := behindNginx(s)
	for name, host := range map[string]string{
		"loopback, where the browser sends Sec-Fetch-Site": "127.0.0.1:" + port,
		"plain http, where it does not":                    otherHost + ":" + port,
		"with the token in the address":                    url.UserPassword("bob", bobToken).String() + "@127.0.0.1:" + port,
	} {
		s.threeStreams("u1")
		operator, token := "alice", aliceToken
		if strings.Contains(host, "@") {
			operator = "nobody"
		}
		b := openBrowser(t, operator, token)
		if operator == "nobody" {
			call(b, fetch.Disable, cdp.Empty{})
		}
		b.run(chromedp.Navigate("http://" + host + "/ops/cap/admin/?user=u1"))
		b.becomes(shows("#slots", "3 live slots, limit 3"))
		if !b.is("getComputedStyle(document.querySelector('.card')).borderRadius === '10px'") {
			t.Errorf("%s: there is no style", name)
		}
		b.releaseAll(name)
		b.becomes(shows("#said", "Released 3 slots of u1."))
		b.becomes(shows("#audit", name))
		b.quiet()
	}
}

func TestPageFillsItselfOnceTheStoreAnswers(t *testing.T) {
	t.Parallel()
	s, server := impatientService(t, operators(), "ADMIN_TIMEOUT=30s")
	s.threeStreams("u1")
	b := openBrowser(t, "alice", aliceToken)
	server.Pause()
	b.run(chromedp.Navigate(s.admin + "/admin/?user=u1"))
	b.becomes(shows("#slots", "The store has not answered yet"))
	b.does("for (let n = 0; n < 5; n++) refresh()") // as the clock would, while the store hangs
	server.Unpause()
	b.becomes(shows("#slots", "3 live slots, limit 3"))
	b.becomes(shows("#users", "u1"))
	const slotsAsked = "loading.then(() => performance.getEntriesByType('resource').filter((r) => r.name.includes('wait=slots')).length)"
	if asked := value(b, chromedp.Evaluate[int](slotsAsked, chromedp.EvalAwaitPromise)); asked > 2 {
		t.Errorf("the page has asked %d times: its refreshes pile up behind a store that hangs", asked)
	}
	server.Kill()
	b.becomes(shows("#banner", "The store is in trouble"))
	b.becomes(shows("#slots", "Can’t be shown"))
	b.quiet()
}

// TestScreenshots writes pictures to be looked at.
func TestScreenshots(t *testing.T) {
	t.Parallel()
	folder := ".tmp/screenshots"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	path := auditFile(t)
	s, server := withRedis(t, operators(), "AUDIT_LOG="+path, "SLOT_TTL=90s", "ADMIN_TIMEOUT=300ms", "ON_STORE_FAILURE=local")
	s.threeStreams("customer-4711@example.com")
	for n, user := range []string{"anna@example.com", "org:acme/seat-12", "ümläut 名前", "byte\xff", `<img src=x onerror=alert(1)>`, "zero\u200bwidth"} {
		for m := range 7 - n {
			s.acquire(user, fmt.Sprint("r", m), "204 held", "X-Stream-Limit: -1")
		}
	}
	s.releaseAll("byte\xff", "leak after the deploy of 08:23")
	s.alice(403, "POST", "/admin/api/release", `{"user":"anna@example.com","reason":"x"}`, "Origin: https://evil.example")
	s.alice(200, "POST", "/admin/api/release", `{"user":"anna@example.com","id":"r1","reason":"ticket 4711: the customer says that she has one tab open"}`)
	b := openBrowser(t, "alice", aliceToken)
	shoot := func(name string, width int64, scheme string, before ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		b.run(chromedp.EmulateViewport(width, 900))
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		b.run(before...)
		overflow := value(b, chromedp.Evaluate[int]("document.documentElement.scrollWidth - innerWidth"))
		picture := value(b, chromedp.FullScreenshot(100))
		if overflow > 0 {
			t.Errorf("%s is %d pixels wider than its window", name, overflow)
		}
		file := filepath.Join(folder, fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
		if err := os.WriteFile(file, picture, 0o644); err != nil {
			t.Error(err)
		}
	}
	sizes := func(name string, before ...chromedp.Action[chromedp.Void]) {
		for _, width := range []int64{1280, 390} {
			for _, scheme := range []string{"light", "dark"} {
				shoot(name, width, scheme, before...)
			}
		}
	}
	b.run(chromedp.Navigate(s.admin + "/admin/?user=" + url.QueryEscape("customer-4711@example.com")))
	b.becomes(shows("#slots", "3 live slots, limit 3"))
	sizes("user")
	b.click("#release-all")
	sizes("confirm")
	b.run(chromedp.Navigate(s.admin + "/admin/"))
	sizes("start")
	server.Kill()
	s.acquire("u1", "r1", "204 held local")
	b.becomes(shows("#banner", "acquire"))
	b.run(chromedp.Navigate(s.admin + "/admin/?user=" + url.QueryEscape("customer-4711@example.com")))
	b.becomes(shows("#slots", "Can’t be shown"))
	sizes("trouble")
}
