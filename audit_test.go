package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

func auditFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "audit.log")
}

// linesOf are the lines of a file; the last one is whole.
func linesOf(t *testing.T, path string) []string {
	t.Helper()
	text := readText(t, path)
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		t.Errorf("%s ends within a line", path)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func (s *running) releaseAll(user, reason string) {
	s.Helper()
	s.alice(200, "POST", "/admin/api/release", string(append(appendString(append(appendString([]byte(`{"user":`), user), `,"reason":`...), reason), '}')))
}

func TestAuditLine(t *testing.T) {
	t.Parallel()
	entry := auditEntry{
		time: time.Date(2026, 11, 30, 8, 50, 1, 20e6, time.FixedZone("", 3600)), operator: "alice", peer: "127.0.0.1",
		user: "u\"\xff", reason: "two\nlines", ids: []string{"r1", "r2"}, result: auditReleased,
	}
	want := `{"time":"2026-11-30T07:50:01.020Z","operator":"alice","peer":"127.0.0.1","user":"u\"` + "\xff" + `","reason":"two\u000alines","ids":["r1","r2"],"result":"released"}`
	if got := string(entry.line()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	entry.ids = nil
	if got := string(entry.line()); !strings.Contains(got, `"ids":[],`) {
		t.Errorf("without ids: %s", got)
	}
}

func TestEveryAttemptIsInTheFileBeforeItsAnswer_P01(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	s, server := withRedis(t, operators(), "AUDIT_LOG="+path, "ADMIN_TIMEOUT=300ms")
	s.acquire("u1", "r1", "204 held")
	for n, c := range []struct {
		status             int
		body, want, header string
	}{
		{200, `{"user":"u1","reason":"why"}`, `"user":"u1","reason":"why","ids":["r1"],"result":"released"}`, "Accept: */*"},
		{400, `{"user":"u1"}`, `"user":"u1","reason":"","ids":[],"result":"refused"}`, "Accept: */*"},
		{403, `{"user":"u1","reason":"x"}`, `"user":"u1","reason":"x","ids":[],"result":"refused"}`, "Origin: https://evil.example"},
		{503, `{"user":"u1","reason":"away"}`, `"user":"u1","reason":"away","ids":[],"result":"failed"}`, "Accept: */*"},
	} {
		if c.status == 503 {
			server.Kill()
		}
		s.alice(c.status, "POST", "/admin/api/release", c.body, c.header)
		lines := linesOf(t, path)
		if len(lines) != n+1 || !strings.HasSuffix(lines[n], c.want) || !strings.Contains(lines[n], `"operator":"alice","peer":"127.0.0.1"`) {
			t.Errorf("%d: the file has\n%s", c.status, strings.Join(lines, "\n"))
		}
	}
	s.asked("POST", "/admin/api/release", `{"user":"u1","reason":"signed out"}`, "Content-Type: application/json")
	s.alice(405, "PUT", "/admin/api/release", `{"user":"u1","reason":"no POST"}`)
	if lines := linesOf(t, path); len(lines) != 4 {
		t.Errorf("the file has\n%s", strings.Join(lines, "\n"))
	}
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", stat.Mode(), err)
	}
	if lines := s.log.find("event", "audit"); len(lines) != 0 {
		t.Errorf("the log has it too: %v", lines)
	}
}

func TestRotatedFilesAreReopened(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	s := start(t, operators(), "AUDIT_LOG="+path)
	s.releaseAll("u1", "first")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	s.releaseAll("u1", "renamed away")
	if old, fresh := linesOf(t, path+".1"), linesOf(t, path); len(old) != 1 || len(fresh) != 1 || !strings.Contains(fresh[0], "renamed away") {
		t.Errorf("old %q, new %q", old, fresh)
	}
	if err := errors.Join(os.Rename(path, path+".2"), os.WriteFile(path, nil, 0o640)); err != nil {
		t.Fatal(err)
	}
	s.releaseAll("u1", "a new file is there")
	if lines := linesOf(t, path); len(lines) != 1 || !strings.Contains(lines[0], "a new file is there") {
		t.Errorf("after a rotation that creates: %q", lines)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.releaseAll("u1", "removed")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	s.releaseAll("u1", "emptied")
	if lines := linesOf(t, path); len(lines) != 1 || !strings.Contains(lines[0], "emptied") {
		t.Errorf("after copytruncate: %q", lines)
	}
	if trail := s.trail(); len(trail) != 5 || trail[0].Reason != "emptied" || trail[4].Reason != "first" {
		t.Errorf("trail %+v", trail)
	}
}

func TestTornLineOfAnotherProcessTakesNothingWithIt(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	s := start(t, operators(), "AUDIT_LOG="+path)
	s.releaseAll("u1", "first")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(`{"time":"2026-11-30T01:02:03.000Z","oper`); err != nil { // its disk was full
		t.Fatal(err)
	}
	s.releaseAll("u1", "second")
	lines := linesOf(t, path)
	if last := lines[len(lines)-1]; len(lines) != 3 || !json.Valid([]byte(last)) || !strings.Contains(last, "second") {
		t.Errorf("the file has\n%s", strings.Join(lines, "\n"))
	}
}

// slowDisk is a file whose disk is done with a line when the test says so, and with what.
type slowDisk struct {
	trailFile
	syncing chan chan error
}

func (d slowDisk) Sync() error {
	done := make(chan error)
	d.syncing <- done
	return errors.Join(<-done, d.trailFile.Sync())
}

func TestLineIsOnDiskBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	cfg := mustLoad(t, operators(), "AUDIT_LOG="+path)
	service := serviceOn(cfg, openStore(cfg, slotstore.Events{}))
	var log bytes.Buffer
	service.log = zerolog.New(&log)
	page := newAdmin(service)
	syncing := make(chan chan error)
	page.audit.open = func(path string) (trailFile, error) {
		file, err := openTrail(path)
		return slowDisk{file, syncing}, err
	}
	router := chi.NewRouter()
	router.Route("/admin", page.routes)
	for _, c := range []struct {
		body, result string
		disk         error
		status       int
	}{
		{`{"user":"u1","reason":"done"}`, "released", nil, 200},
		{`{"user":"u1"}`, "refused", nil, 400},
		{`{"user":"u1","reason":"a broken disk"}`, "released", syscall.EIO, 500},
	} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // so that the double is opened
			t.Fatal(err)
		}
		answered := make(chan *httptest.ResponseRecorder, 1)
		go func() { answered <- releaseWith(router, c.body) }()
		done := <-syncing
		if lines := linesOf(t, path); len(lines) != 1 || !strings.Contains(lines[0], `"result":"`+c.result) {
			t.Errorf("%s: while the disk works, the file has %q", c.body, lines)
		}
		// Whoever reads does not wait for the disk.
		request, trail := httptest.NewRequest(http.MethodGet, "/admin/api/audit", http.NoBody), httptest.NewRecorder()
		request.SetBasicAuth("alice", aliceToken)
		if router.ServeHTTP(trail, request); trail.Code != http.StatusOK {
			t.Errorf("the trail: %d", trail.Code)
		}
		select {
		case response := <-answered:
			t.Errorf("%s: answered with %d before the line is on disk", c.body, response.Code)
		case <-time.After(20 * time.Millisecond):
		}
		done <- c.disk
		if response := <-answered; response.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.body, response.Code, response.Body, c.status)
		}
	}
	if !strings.Contains(log.String(), `"reason":"a broken disk"`) || strings.Contains(log.String(), `"event":"audit","operator":"alice","peer":"192.0.2.1","user":"u1","reason":"done"`) {
		t.Errorf("logged %s", log.String())
	}
}

func TestTrailIsReadBackAfterARestart(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	var file bytes.Buffer
	write := func(reason string, ids ...string) {
		entry := auditEntry{time: time.Now(), operator: "bob", peer: "10.0.0.1", user: "u\xff", reason: reason, ids: ids, result: auditReleased}
		file.Write(append(entry.line(), '\n'))
	}
	many := make([]string, 1000)
	for n := range many {
		many[n] = strings.Repeat("x", 32)
	}
	for n := range 150 { // more than 4 MiB
		write(fmt.Sprint("old", n), many...)
	}
	for n := range 120 {
		write(fmt.Sprint("entry", n), "r1")
	}
	write("last but one")
	file.WriteString("no entry\n\n{}\n[1]\n{\"time\":1,\"ids\":[],\"result\":\"released\"}\n{\"time\":\"x\",\"ids\":[],\"result\":\"other\"}\n\x00\xff\n")
	write("last")
	file.WriteString(`{"time":"2026-11-30T01:02:03.000Z","operator":"bob","pe`) // the process died here
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, operators(), "AUDIT_LOG="+path)
	trail := s.trail()
	if len(trail) != 100 || trail[0].Reason != "last" || trail[1].Reason != "last but one" || trail[2].Reason != "entry119" || trail[99].Reason != "entry22" {
		t.Fatalf("%d entries, %+v", len(trail), trail[:min(3, len(trail))])
	}
	if trail[0].Operator != "bob" || len(trail[0].IDs) != 0 || !slices.Equal(trail[2].IDs, []string{"r1"}) {
		t.Errorf("entries %+v, %+v", trail[0], trail[2])
	}
	if raw := bodyOf(s.alice(200, "GET", "/admin/api/audit", "")); !strings.Contains(raw, "\"user\":\"u\xff\"") {
		t.Error("the user's bytes are lost")
	}
	s.releaseAll("u1", "after")
	if trail = s.trail(); len(trail) != 100 || trail[0].Reason != "after" || trail[1].Reason != "last" {
		t.Errorf("%d entries, %+v", len(trail), trail[0])
	}
	// The torn line has taken nothing with it.
	lines := linesOf(t, path)
	if last := lines[len(lines)-1]; !json.Valid([]byte(last)) || !strings.Contains(last, `"after"`) || !strings.HasSuffix(lines[len(lines)-2], `"pe`) {
		t.Errorf("the file ends with\n%s", last)
	}
	if again := start(t, operators(), "AUDIT_LOG="+path).trail(); len(again) != 100 || again[0].Reason != "after" || again[1].Reason != "last" {
		t.Errorf("read back again: %+v", again[0])
	}
}

func TestWithoutAFileTheTrailIsTheLog(t *testing.T) {
	t.Parallel()
	s := start(t, operators())
	s.acquire("u1", "r1", "204 held")
	s.releaseAll("u1", "why\xff")
	line := s.event("audit")
	if line["operator"] != "alice" || line["peer"] != "127.0.0.1" || line["user"] != "u1" || line["result"] != "released" ||
		line["level"] != "info" || fmt.Sprint(line["ids"]) != "[r1]" || line["time"] == nil || line["message"] == nil {
		t.Errorf("logged %v", line)
	}
	if !strings.Contains(s.log.String(), "\"reason\":\"why\xff\"") {
		t.Errorf("bytes are lost:\n%s", s.log)
	}
	if trail := s.trail(); len(trail) != 1 {
		t.Errorf("trail %+v", trail)
	}
	if page := bodyOf(s.alice(200, "GET", "/admin/", "")); !strings.Contains(page, "Since this process started") {
		t.Error("the page does not say that the trail began with the process")
	}
}

func TestNoLevelFiltersTheTrail(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "console"} {
		for _, path := range []string{"", "/dev/full"} {
			cfg, err := loadConfig([]string{"STREAMCAP_" + operators(), "STREAMCAP_AUDIT_LOG=" + path, "STREAMCAP_LOG_LEVEL=error", "STREAMCAP_LOG_FORMAT=" + format})
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			service := serviceOn(cfg, openStore(cfg, slotstore.Events{}))
			service.log = newLogger(&log, cfg.LogLevel, cfg.LogFormat)
			releaseWith(service.adminHandler(), `{"user":"u1","reason":"why"}`)
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "alice") || !strings.Contains(log.String(), "why") {
				t.Errorf("%s, AUDIT_LOG=%s: logged\n%s", format, path, log.String())
			}
		}
	}
}

func TestReleaseStandsWhereTheTrailCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, fifo := filepath.Join(dir, "socket"), filepath.Join(dir, "fifo")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/full", socket, fifo} { // a full disk, what can't be opened, a pipe without a reader
		s := start(t, operators(), "AUDIT_LOG="+path)
		s.acquire("u1", "r1", "204 held")
		response := s.alice(500, "POST", "/admin/api/release", `{"user":"u1","reason":"why"}`)
		var problem struct {
			Title    string
			Status   int
			Detail   string
			Released int
			IDs      []string
		}
		if err := json.Unmarshal([]byte(bodyOf(response)), &problem); err != nil || problem.Title != "audit_failed" || problem.Status != 500 ||
			problem.Released != 1 || !slices.Equal(problem.IDs, []string{"r1"}) || problem.Detail == "" {
			t.Errorf("%s: %+v, %v", path, problem, err)
		}
		s.wantsSlots("u1", 0)
		eventually(t, "the entry is in the log", func() bool { return len(s.log.find("result", "released")) == 1 })
		if line := s.log.find("result", "released")[0]; line["event"] != "audit" || line["reason"] != "why" || line["user"] != "u1" || line["level"] != "error" || line["error"] == nil {
			t.Errorf("%s: logged %v", path, line)
		}
		s.alice(500, "POST", "/admin/api/release", `{"user":"u1"}`)
		if path != "/dev/full" && len(s.log.find("message", "can't be opened")) != 1 {
			t.Errorf("%s: at the start nothing was said:\n%s", path, s.log)
		}
	}
}

func TestPipeIsWrittenAndNeverReadBack(t *testing.T) {
	t.Parallel()
	fifo := auditFile(t)
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	if _, err := reader.WriteString("for its reader\n"); err != nil {
		t.Fatal(err)
	}
	s := start(t, operators(), "AUDIT_LOG="+fifo)
	if trail := s.trail(); len(trail) != 0 {
		t.Errorf("read back %+v", trail)
	}
	if lines := s.log.find("event", "audit"); len(lines) != 0 {
		t.Errorf("it complains at the start: %v", lines)
	}
	s.releaseAll("u1", "first")
	s.releaseAll("u1", "second")
	lines := bufio.NewReader(reader)
	for _, want := range []string{"for its reader", `"first"`, `"second"`} {
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Errorf("the pipe gives %q, %v; want %s", line, err, want)
		}
	}
	// A pipe that nobody empties is a failure after a second, not a wait.
	pipe := int(reader.Fd())
	full := syscall.SetNonblock(pipe, true)
	for n, filled := 0, make([]byte, 4096); n < 1<<20 && full == nil; n += len(filled) {
		_, full = syscall.Write(pipe, filled)
	}
	if !errors.Is(full, syscall.EAGAIN) {
		t.Fatalf("the pipe is never full: %v", full)
	}
	began := time.Now()
	s.alice(500, "POST", "/admin/api/release", `{"user":"u1","reason":"full"}`)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestLinesOfManyWritersNeverMix(t *testing.T) {
	t.Parallel()
	path := auditFile(t)
	services := []*running{start(t, operators(), "AUDIT_LOG="+path), start(t, operators(), "AUDIT_LOG="+path)}
	const each = 150
	var writing sync.WaitGroup
	for i, s := range services {
		for n := range each {
			writing.Go(func() { s.releaseAll(fmt.Sprintf("user%d-%d", i, n), strings.Repeat("long ", 99)) })
		}
	}
	writing.Wait()
	seen := make(map[string]bool)
	for _, line := range linesOf(t, path) {
		var entry entryAnswer
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		seen[entry.User] = true
	}
	if len(seen) != 2*each {
		t.Errorf("%d entries, want %d", len(seen), 2*each)
	}
	if trail := services[0].trail(); len(trail) != 100 {
		t.Errorf("%d entries are shown", len(trail))
	}
}

// halfStore takes half of a release.
type halfStore struct{ slotstore.Store }

func (s halfStore) Release(ctx context.Context, ids ...slotstore.ID) (slotstore.Releases, error) {
	done, err := s.Store.Release(ctx, ids[:len(ids)/2]...)
	done.Unrecorded = ids[len(ids)/2:]
	return done, errors.Join(err, &slotstore.Error{Reason: slotstore.Timeout, Err: errors.New("half")})
}

// releaseWith has a handler answer a release of alice's.
func releaseWith(handler http.Handler, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, "/admin/api/release", strings.NewReader(body))
	request.SetBasicAuth("alice", aliceToken)
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder
}

func TestHalfAReleaseIsAFailureThatNamesWhatIsDone(t *testing.T) {
	t.Parallel()
	cfg, err := loadConfig([]string{"STREAMCAP_" + operators()})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	service := serviceOn(cfg, halfStore{openStore(cfg, slotstore.Events{})})
	service.log = zerolog.New(&log)
	for n := range 4 {
		if _, err := service.store.Acquire(t.Context(), slotstore.Request{ID: slotstore.ID{User: "u1", Request: fmt.Sprint("r", n)}, Limit: -1}); err != nil {
			t.Fatal(err)
		}
	}
	response := releaseWith(service.adminHandler(), `{"user":"u1","reason":"x"}`)
	if response.Code != 503 || !strings.Contains(response.Body.String(), "2 slots are released, others may be") {
		t.Errorf("%d %s", response.Code, response.Body)
	}
	if !strings.Contains(log.String(), `"ids":["r0","r1"],"result":"failed"`) {
		t.Errorf("logged %s", log.String())
	}
}
