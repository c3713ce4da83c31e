package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/leodido/go-syslog/v4/rfc3164"
)

// ends sends an end-of-request line as nginx does.
func (s *running) ends(datagram string) {
	s.Helper()
	network := "udp"
	address := s.nginxLog
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unixgram", path
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, datagram); err != nil {
		s.Fatal(err)
	}
}

// The lines are what Debian's nginx 1.22.1 sends, with nohostname and without.
const (
	endLine     = `<190>Nov 29 23:56:23 streamcap: {"user":"%s","id":"%s","status":"200"}`
	endLineHost = `<190>Nov  9 03:06:03 ip-10-0-0-7 streamcap: {"user":"%s","id":"%s","status":"499"}`
)

func TestEndOfRequestFreesTheSlot(t *testing.T) {
	eachStore(t, func(s *running) {
		for n, line := range []string{endLine, endLineHost} {
			id := fmt.Sprint("r", n)
			s.acquire("u1", id, "204 held")
			s.ends(fmt.Sprintf(line, "u1", id))
			eventually(s.T, "the slot is free", func() bool {
				return s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: "+id).StatusCode == http.StatusGone
			})
		}
	})
}

func TestManyEndsAtOnceAllCount(t *testing.T) {
	eachStore(t, func(s *running) {
		const streams = 2000
		for n := range streams {
			s.acquire("u1", fmt.Sprint("r", n), "204 held")
		}
		for n := range streams {
			s.ends(fmt.Sprintf(endLine, "u1", fmt.Sprint("r", n)))
		}
		eventually(s.T, "all slots are free", func() bool {
			defer s.release("u1", "probe", "1")
			return s.acquire("u1", "probe", "204 held").Header.Get(headerUsed) == "1"
		})
	}, "DEFAULT_LIMIT=-1")
}

func TestEndOfRequestOnASocket(t *testing.T) {
	s := start(t, "NGINX_LOG_LISTEN=unix:"+t.TempDir()+"/log.sock")
	s.acquire("u1", "r1", "204 held")
	s.ends(fmt.Sprintf(endLine, "u1", "r1"))
	eventually(t, "the slot is free", func() bool {
		return s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: r1").StatusCode == http.StatusGone
	})
}

func TestBadEndLineIsNeverFatal(t *testing.T) {
	s := start(t)
	s.acquire("u1", "r1", "204 held")
	for _, datagram := range []string{"", "\x00", "{}", "<190>", "<190>Nov 29 23:56:23 streamcap: {", strings.Repeat("x", 60_000)} {
		s.ends(datagram)
	}
	s.ends(fmt.Sprintf(endLine, "u1", "r1"))
	eventually(t, "the slot is free", func() bool {
		return s.do("POST", "/heartbeat", "", "X-User-Id: u1", "X-Request-Id: r1").StatusCode == http.StatusGone
	})
	s.warnsOnce("message", "end-of-request line")
}

func TestParseEnd(t *testing.T) {
	for line, want := range map[string]string{
		fmt.Sprintf(endLine, "u1", "r1"):                                  `"u1" "r1"`,
		fmt.Sprintf(endLine, " u1 ", "r1"):                                `"u1" "r1"`,
		fmt.Sprintf(endLineHost, "\xff/\u00e9", "r1"):                     `"\xff/é" "r1"`,
		fmt.Sprintf(endLine, `a\"b\\c`, "r1"):                             `"a\"b\\c" "r1"`,
		fmt.Sprintf(endLine, "a: {b} c", "r1"):                            `"a: {b} c" "r1"`,
		fmt.Sprintf(endLine, "", "r1"):                                    "nothing",
		fmt.Sprintf(endLine, "-", "r1"):                                   "nothing",
		fmt.Sprintf(endLine, "u1", ""):                                    "nothing",
		fmt.Sprintf(endLine, "", ""):                                      "nothing",
		fmt.Sprintf(endLine, `a\u0007b`, "r1"):                            "bad",
		fmt.Sprintf(endLine, "u1", "r 1"):                                 "bad",
		fmt.Sprintf(endLine, strings.Repeat("x", 257), "r1"):              "bad",
		`<190>Nov 29 23:56:23 streamcap: {"id":"r1"}`:                     "bad",
		`<190>Nov 29 23:56:23 streamcap: {"user":7,"id":"r1"}`:            "bad",
		`<190>Nov 29 23:56:23 streamcap: {"user":"u1","id":"r1"} x`:       "bad",
		`<190>Nov 29 23:56:23 streamcap: "GET / HTTP/1.1" 200`:            "bad",
		`{"user":"u1","id":"r1","status":"200"}`:                          "bad",
		`<999>Nov 29 23:56:23 streamcap: {"user":"u1","id":"r1"}`:         "bad",
		`<190>Nov 29 23:56:23 `:                                           "bad",
		`<190>Nov 29 23:56:23 streamcap: [{"user":"u1","id":"r1"}]`:       "bad",
		`<190>Nov 29 23:56:23 streamcap: {"user":"u1","id":"r1","x":{}} `: `"u1" "r1"`,
	} {
		if got := parsedEnd([]byte(line)); got != want {
			t.Errorf("%q: %s, want %s", line, got, want)
		}
	}
}

func parsedEnd(datagram []byte) string {
	id, err := parseEnd(rfc3164.NewParser(rfc3164.WithBestEffort()), datagram)
	switch {
	case err == errNothingToRelease: //nolint:errorlint // it is handed on as it is
		return "nothing"
	case err != nil:
		return "bad"
	}
	return fmt.Sprintf("%q %q", id.User, id.Request)
}

// FuzzEndLine wants every datagram to be refused, or to name a slot that every other way in accepts too.
func FuzzEndLine(f *testing.F) {
	for _, seed := range []string{fmt.Sprintf(endLine, "u1", "r1"), fmt.Sprintf(endLineHost, "\xff", "r1"), fmt.Sprintf(endLine, "", ""), "<1>", "x"} {
		f.Add([]byte(seed))
	}
	parser := rfc3164.NewParser(rfc3164.WithBestEffort())
	f.Fuzz(func(t *testing.T, datagram []byte) {
		id, err := parseEnd(parser, datagram)
		if err != nil {
			return
		}
		if again, err := parseID(id.User, id.Request); err != nil || again != id {
			t.Errorf("%q names %q, which is %q, %v", datagram, id, again, err)
		}
	})
}

// A restart under load: nginx has told of each end, and no user is to wait for a TTL.
func TestStopReleasesWhatStandsInTheSocket_G03(t *testing.T) {
	s, server := withRedis(t, "DEFAULT_LIMIT=-1")
	const streams = 500 // fewer than any socket has room for
	for n := range streams {
		s.acquire("u1", fmt.Sprint("r", n), "204 held")
	}
	for n := range streams {
		s.ends(fmt.Sprintf(endLine, "u1", fmt.Sprint("r", n)))
	}
	s.signals <- syscall.SIGTERM
	if code := <-s.exited; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	s.exited <- exitOK
	if left := server.Client.ZCard(t.Context(), "streamcap:{u1}:slots").Val(); left != 0 {
		t.Errorf("%d slots are left", left)
	}
}
