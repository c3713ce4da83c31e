package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

// openBrowser starts a chromium of the test's own.
func openBrowser(t *testing.T, name, token string, flags ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	// Chromium runs as root without its sandbox alone; it sees nothing but this machine.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox)
	options = append(options, flags...)
	ctx, closeAll := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, closePage := chromedp.NewContext(ctx)
	ctx, giveUp := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() {
		giveUp()
		closePage()
		closeAll()
	})
	b := &browser{T: t, ctx: ctx, name: name, token: token}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatalf("chromium does not start (apt-get install chromium): %v", err)
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

func TestOperatorReleasesAllInABrowser_P04(t *testing.T) {
	path := auditFile(t)
	s, _ := withRedis(t, operators(), "AUDIT_LOG="+path)
	s.threeStreams("u1")
	b := openBrowser(t, "alice", aliceToken)
	b.run(chromedp.Navigate(s.admin+"/admin/"), chromedp.WaitVisible(chromedp.CSS("#user")))
	b.becomes(shows("#users", "u1"))
	b.run(chromedp.SendKeys(chromedp.CSS("#user"), "u1\r"))
	b.becomes(shows("#slots", "3 live slots, limit 3"))
	if got := b.text("#slots"); !strings.Contains(got, "/v1/chat/completions") || !strings.Contains(got, "203.0.113.9") || !strings.Contains(got, "okhttp") {
		t.Errorf("the slots:\n%s", got)
	}
	// It counts down by itself, also while no refresh takes away what the operator is about to copy.
	b.does("getSelection().selectAllChildren(document.querySelector('#slots .id'))")
	before := b.text("[data-left]")
	var after string
	for changed, changes := time.Now(), 0; changes < 2; changes++ {
		b.becomes(fmt.Sprintf("document.querySelector('[data-left]').textContent !== %q", before))
		after = b.text("[data-left]")
		if took := time.Since(changed); changes == 1 && took > 4*time.Second {
			t.Errorf("it counts each %s", took)
		}
		before, changed = after, time.Now()
	}
	if !strings.HasPrefix(after, "1 min") {
		t.Errorf("it counts to %s", after)
	}
	s.heartbeat("u1", "2c5f2e8a91b34d7f8e6a0b1c2d3e4f50", "204")
	time.Sleep(6 * time.Second) // a refresh comes every 5
	if !b.is("/^.c5f2e8a/.test(getSelection().toString())") {
		t.Error("a refresh has taken the selection away")
	}
	b.does("getSelection().removeAllRanges()")

	// Escape, and no reason, release nothing.
	b.click("#release-all")
	b.becomes("document.getElementById('confirm').open")
	if got := b.text("#confirm"); !strings.Contains(got, "Release all 3 slots of u1?") || !strings.Contains(got, "not cut") || !strings.Contains(got, "410") {
		t.Errorf("the dialog:\n%s", got)
	}
	b.run(chromedp.KeyEvent("\r"))
	time.Sleep(50 * time.Millisecond)
	b.run(chromedp.KeyEvent("\x1b"))
	b.becomes("!document.getElementById('confirm').open && document.activeElement.id === 'release-all'")
	s.wantsSlots("u1", 3)

	// One, then all.
	b.click("#release-1c5f2e8a91b34d7f8e6a0b1c2d3e4f50")
	b.becomes(shows("#confirm", "Release slot 1c5f2e8a91b34d7f8e6a0b1c2d3e4f50 of u1?"))
	b.run(chromedp.KeyEvent("one tab\r"))
	b.becomes(shows("#said", "Released 1 slot of u1."))
	b.becomes(shows("#slots", "2 live slots, limit 3"))
	b.releaseAll("ticket 4711: one tab open")
	b.becomes(shows("#said", "Released 2 slots of u1. Running streams are not cut."))
	b.becomes(shows("#slots", "0 live slots"))
	b.becomes(shows("#audit", "ticket 4711: one tab open"))
	b.becomes(shows("#users", "Nobody holds a slot."))
	if !b.is("document.activeElement.id === 'said'") {
		t.Error("the focus is lost")
	}
	s.audited("u1", "ticket 4711: one tab open", "released", "0c5f2e8a91b34d7f8e6a0b1c2d3e4f50", "2c5f2e8a91b34d7f8e6a0b1c2d3e4f50")
	s.heartbeat("u1", "0c5f2e8a91b34d7f8e6a0b1c2d3e4f50", "410 not_held")
	// What happens meanwhile appears by itself.
	s.acquire("u1", "new", "204 held", "X-Stream-Limit: 3")
	b.becomes(shows("#slots", "1 live slot, limit 3"))
	b.quiet()
}

func TestWrongPasswordInABrowser_P06(t *testing.T) {
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
	dir := s.TempDir()
	port = freePort(s.T)
	conf := fmt.Sprintf("daemon off; pid %[1]s/pid; error_log stderr;\nevents {}\nhttp { access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s;\n"+
		"fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;\n"+
		"server { listen 127.0.0.1:%[2]s; location /ops/cap/ { proxy_pass %[3]s/; } } }\n", dir, port, s.admin)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600); err != nil {
		s.Fatal(err)
	}
	nginx := exec.CommandContext(context.Background(), "/usr/sbin/nginx", "-e", "stderr", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
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
	return port
}

func TestPageBehindNginxInABrowser(t *testing.T) {
	s := start(t, operators())
	port := behindNginx(s)
	for name, host := range map[string]string{
		"loopback, where the browser sends Sec-Fetch-Site": "127.0.0.1:" + port,
		"plain http, where it does not":                    "ops.example:" + port,
		"with the token in the address":                    url.UserPassword("bob", bobToken).String() + "@127.0.0.1:" + port,
	} {
		s.threeStreams("u1")
		operator, token := "alice", aliceToken
		if strings.Contains(host, "@") {
			operator = "nobody"
		}
		b := openBrowser(t, operator, token, chromedp.Flag("host-resolver-rules", "MAP ops.example 127.0.0.1"))
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
	s, server := impatientService(t, operators(), "ADMIN_TIMEOUT=30s")
	s.threeStreams("u1")
	b := openBrowser(t, "alice", aliceToken)
	server.Pause()
	b.run(chromedp.Navigate(s.admin + "/admin/?user=u1"))
	b.becomes(shows("#slots", "The store has not answered yet"))
	server.Unpause()
	b.becomes(shows("#slots", "3 live slots, limit 3"))
	b.becomes(shows("#users", "u1"))
	server.Kill()
	b.becomes(shows("#banner", "The store is in trouble"))
	b.becomes(shows("#slots", "Can’t be shown"))
	b.quiet()
}

// TestScreenshots writes pictures to be looked at.
func TestScreenshots(t *testing.T) {
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
