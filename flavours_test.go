package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// misfit is a Redis that does not fit the settings.
type misfit struct {
	settings []string
	reason   string // of every role's self-test
	says     string // in its error
	hint     string // in its hint
	repair   func() // nil: nothing to repair in a running service
	well     int    // how many roles can do their work all the same
}

// misfits are those of the issue, each with its own Redis.
func misfits() map[string]func(t *testing.T) misfit {
	behindName := func(t *testing.T, wrong, right *redistest.Node, scheme, reason, says, hint string, settings ...string) misfit {
		t.Helper()
		name := redistest.NewName(t, nil)
		name.Point("tcp", wrong.Address())
		return misfit{
			settings: append(settings, "REDIS_URL="+scheme+"://"+name.Address), reason: reason, says: says, hint: hint,
			repair: func() { name.Point("tcp", right.Address()) },
		}
	}
	return map[string]func(t *testing.T) misfit{
		"Redis is down": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{})
			node.Kill()
			return misfit{settings: []string{"REDIS_URL=redis://" + node.Address()}, reason: "unavailable", says: "connection refused", hint: "is Redis up", repair: node.Run}
		},
		"wrong password": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{Password: "another"})
			repair := func() { node.Do("CONFIG", "SET", "requirepass", "secret") }
			return misfit{settings: []string{"REDIS_URL=redis://:secret@" + node.Address()}, reason: "noperm", says: "WRONGPASS", hint: "the password", repair: repair}
		},
		"no password": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{Password: "secret"})
			repair := func() { node.Do("CONFIG", "SET", "requirepass", "") }
			return misfit{settings: []string{"REDIS_URL=redis://" + node.Address()}, reason: "noperm", says: "NOAUTH", hint: "the password", repair: repair}
		},
		"an ACL that is too narrow": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{})
			line := readmesACL(t)
			node.Do(append(append([]string{}, line...), "-time")...)
			repair := func() { node.Do(line...) }
			return misfit{settings: []string{"REDIS_URL=redis://streamcap:password@" + node.Address()}, reason: "noperm", says: "can't run this command", hint: "the ACL line", repair: repair}
		},
		"an ACL without scripts": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{})
			line := readmesACL(t)
			node.Do(append(append([]string{}, line...), "-eval", "-evalsha")...)
			repair := func() { node.Do(line...) }
			return misfit{settings: []string{"REDIS_URL=redis://streamcap:password@" + node.Address()}, reason: "noperm", says: "NOPERM", hint: "the ACL line", repair: repair}
		},
		"redis:// to a port that speaks TLS alone": func(t *testing.T) misfit {
			t.Helper()
			tls := redistest.StartNode(t, redistest.NodeOptions{TLS: redistest.NewCertificates(t, "127.0.0.1")})
			plain := redistest.StartNode(t, redistest.NodeOptions{})
			return behindName(t, tls, plain, "redis", "unavailable", "", "does the port want TLS (rediss://)?")
		},
		"rediss:// to a port that speaks no TLS": func(t *testing.T) misfit {
			t.Helper()
			certificates := redistest.NewCertificates(t, "127.0.0.1")
			plain := redistest.StartNode(t, redistest.NodeOptions{})
			tls := redistest.StartNode(t, redistest.NodeOptions{TLS: certificates})
			return behindName(t, plain, tls, "rediss", "unavailable", "TLS handshake", "does this port speak TLS", "REDIS_CA_FILE="+certificates.CA)
		},
		"a CA that is not known": func(t *testing.T) misfit {
			t.Helper()
			certificates := redistest.NewCertificates(t, "127.0.0.1")
			foreign := redistest.StartNode(t, redistest.NodeOptions{TLS: redistest.NewCertificates(t, "127.0.0.1")})
			right := redistest.StartNode(t, redistest.NodeOptions{TLS: certificates})
			return behindName(t, foreign, right, "rediss", "unavailable", "unknown authority", "STREAMCAP_REDIS_CA_FILE", "REDIS_CA_FILE="+certificates.CA)
		},
		"the system's CAs alone": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{TLS: redistest.NewCertificates(t, "127.0.0.1")})
			return misfit{settings: []string{"REDIS_URL=rediss://" + node.Address()}, reason: "unavailable", says: "unknown authority", hint: "STREAMCAP_REDIS_CA_FILE"}
		},
		"a certificate for another name": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{TLS: redistest.NewCertificates(t, "redis.internal")})
			certificates := redistest.NewCertificates(t, "127.0.0.1")
			right := redistest.StartNode(t, redistest.NodeOptions{TLS: certificates})
			both := writeFile(t, readFile(t, certificates.CA)+readFile(t, node.TLS.CA))
			return behindName(t, node, right, "rediss", "unavailable", "127.0.0.1", "STREAMCAP_REDIS_CA_FILE", "REDIS_CA_FILE="+both)
		},
		"a replica": func(t *testing.T) misfit {
			t.Helper()
			node := redistest.StartNode(t, redistest.NodeOptions{Args: []string{"--replicaof", "127.0.0.1 " + redistest.FreePort(t)}})
			repair := func() { node.Do("REPLICAOF", "NO", "ONE") }
			return misfit{settings: []string{"REDIS_URL=redis://" + node.Address()}, reason: "readonly", says: "READONLY", hint: "use the primary's address", repair: repair, well: 1} // admin only reads
		},
		"sentinels that are down": func(t *testing.T) misfit {
			t.Helper()
			address := "127.0.0.1:" + redistest.FreePort(t)
			settings := []string{"REDIS_URL=redis://" + address, "REDIS_MODE=sentinel", "REDIS_SENTINEL_MASTER=mymaster"}
			return misfit{settings: settings, reason: "unavailable", says: "connection refused", hint: "is Redis up"}
		},
	}
}

func TestRedisThatDoesNotFit_D06_F15_F18(t *testing.T) {
	for name, misfit := range misfits() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fits(t, misfit(t))
		})
	}
}

// fits starts the service on a Redis that does not fit, and wants it to serve, to say why, and to enforce after the repair.
func fits(t *testing.T, wrong misfit) *running {
	t.Helper()
	began := time.Now()
	s := start(t, wrong.settings...)
	if slot := s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1").Header.Get(headerSlot); slot != "failopen" {
		t.Errorf("the first acquire is %q", slot)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the first answer came after %s", took)
	}
	failures := func() (found []map[string]any) {
		for _, line := range s.log.find("event", "self_test") {
			if line["level"] == "error" {
				found = append(found, line)
			}
		}
		return found
	}
	eventually(t, "every role says what is wrong", func() bool { return len(failures()) >= len(slotstore.Roles)-wrong.well })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the cause was named after %s", took)
	}
	// The roles fail some more self-tests, and say no more.
	eventually(t, "the breaker opens", func() bool {
		return s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1").Header.Get(headerReason) == "breaker_open"
	})
	roles := map[any]bool{}
	for _, line := range failures() {
		roles[line["role"]] = true
		text, hint := fmt.Sprint(line["error"]), fmt.Sprint(line["hint"])
		if line["reason"] != wrong.reason || !strings.Contains(text, wrong.says) || !strings.Contains(hint, wrong.hint) {
			t.Errorf("line %v, want reason %s, %q and the hint %q", line, wrong.reason, wrong.says, wrong.hint)
		}
	}
	if want := len(slotstore.Roles) - wrong.well; len(roles) != want || len(failures()) != want {
		t.Errorf("%d lines of %d roles:\n%s", len(failures()), len(roles), s.log)
	}
	if got := s.do("GET", "/healthz", ""); got.StatusCode != http.StatusOK || !strings.Contains(bodyOf(got), `"degraded"`) {
		t.Errorf("/healthz %d", got.StatusCode)
	}
	if wrong.repair != nil {
		wrong.repair()
		s.enforcesWithin(time.Second)
	}
	return s
}

// enforcesWithin wants the store, which answers from now on, to be asked again soon.
func (s *running) enforcesWithin(limit time.Duration) {
	s.Helper()
	start := time.Now()
	eventually(s.T, "streams are counted", func() bool {
		return s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1").Header.Get(headerSlot) == "held"
	})
	took := time.Since(start)
	s.Logf("enforcing %s after the repair", took)
	if took > limit {
		s.Errorf("enforcing %s after the repair, want %s", took, limit)
	}
	s.acquire("u1", "r2", "403 denied stream_limit_reached")
}

func TestClusterAskedInStandaloneMode_D03(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, redistest.NodeOptions{})
	for _, node := range cluster.Primaries {
		began := time.Now()
		s := start(t, "REDIS_URL=redis://"+node.Address())
		for _, role := range slotstore.Roles {
			eventually(t, role+" names the setting", func() bool {
				for _, line := range s.log.find("hint", "STREAMCAP_REDIS_MODE=cluster") {
					if line["event"] == "self_test" && line["role"] == role && line["level"] == "error" && line["reason"] == "moved" {
						return true
					}
				}
				return false
			})
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("named after %s", took)
		}
		s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1")
		var stdout, stderr bytes.Buffer
		if code := run([]string{"check"}, []string{"STREAMCAP_REDIS_URL=redis://" + node.Address()}, &stdout, &stderr, nil); code != exitFailure || !strings.Contains(stdout.String(), "STREAMCAP_REDIS_MODE=cluster") {
			t.Errorf("check: %d\n%s%s", code, stdout.String(), stderr.String())
		}
	}
	settings := []string{"REDIS_URL=redis://" + strings.Join(redistest.Addresses(cluster.Primaries), ","), "REDIS_MODE=cluster", "DEFAULT_LIMIT=2", "ACQUIRE_TIMEOUT=10s"}
	s := start(t, settings...)
	for n := range 100 {
		user := fmt.Sprint("u", n)
		s.acquire(user, "r1", "204 held")
		s.acquire(user, "r2", "204 held")
		s.acquire(user, "r3", "403 denied stream_limit_reached")
	}
	var stdout bytes.Buffer
	environ := []string{}
	for _, setting := range settings {
		environ = append(environ, "STREAMCAP_"+setting)
	}
	if code := run([]string{"check"}, environ, &stdout, io.Discard, nil); code != exitOK {
		t.Errorf("check: %d\n%s", code, stdout.String())
	}
}

// It changes how every name is resolved, so it can't run beside others.
func TestRedissNameMoves_F05_F15(t *testing.T) {
	dns := redistest.NewDNS(t)
	first := redistest.StartNode(t, redistest.NodeOptions{Host: "127.0.0.2"})
	s := fits(t, misfit{settings: []string{"REDIS_URL=redis://redis.example:" + first.Port}, reason: "unavailable", says: "no such host", hint: "is the name right", repair: func() { dns.Point("127.0.0.2") }})
	first.Kill()
	eventually(t, "the breaker opens", func() bool {
		return s.do("GET", "/acquire", "", "X-User-Id: u1", "X-Request-Id: r1").Header.Get(headerReason) == "breaker_open"
	})
	redistest.StartNode(t, redistest.NodeOptions{Host: "127.0.0.3", Port: first.Port})
	dns.Point("127.0.0.3")
	s.enforcesWithin(time.Second)
}

func TestPasswordsWithEveryCharacter_C04(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	port := redistest.FreePort(t)
	server.Client.ConfigSet(t.Context(), "bind", "127.0.0.1")
	if err := server.Client.ConfigSet(t.Context(), "port", port).Err(); err != nil {
		t.Fatal(err)
	}
	var every strings.Builder
	for c := byte(' ') + 1; c < 0x7f; c++ {
		every.WriteByte(c)
	}
	password, user := every.String()+" é€", "stream:cap/@é"
	if err := server.Client.Do(t.Context(), "ACL", "SETUSER", user, "on", ">"+password, "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">"+password).Err(); err != nil {
		t.Fatal(err)
	}
	encode := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	file := writeFile(t, password+"\n")
	tcp, socket := net.JoinHostPort("127.0.0.1", port), server.Socket
	for name, settings := range map[string][]string{
		"in the URL":                  {"REDIS_URL=redis://" + encode(user) + ":" + encode(password) + "@" + tcp},
		"in the URL, no user":         {"REDIS_URL=redis://:" + encode(password) + "@" + tcp},
		"in the URL of a socket":      {"REDIS_URL=unix://" + encode(user) + ":" + encode(password) + "@" + socket + "?db=3"},
		"in a variable":               {"REDIS_URL=redis://" + tcp, "REDIS_USERNAME=" + user, "REDIS_PASSWORD=" + password},
		"in a variable, for a socket": {"REDIS_URL=unix://" + socket + "?db=4", "REDIS_PASSWORD=" + password},
		"in a file":                   {"REDIS_URL=redis://" + tcp + "/5", "REDIS_USERNAME=" + user, "REDIS_PASSWORD_FILE=" + file},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, append(settings, "ACQUIRE_TIMEOUT=10s", "KEY_PREFIX="+strings.NewReplacer(" ", ".", ",", "").Replace(name))...)
			s.acquire("u1", "r1", "204 held")
			s.acquire("u1", "r2", "403 denied stream_limit_reached")
			eventually(t, "every role is well", func() bool { return len(s.log.find("event", "self_test")) >= 4 })
			for _, secret := range []string{password, encode(password)} {
				if strings.Contains(s.log.String(), secret) {
					t.Errorf("the log shows the password:\n%s", s.log)
				}
			}
		})
	}
	if err := server.Client.Do(t.Context(), "AUTH", "default", password).Err(); err != nil {
		t.Fatal(err)
	}
	for db, want := range map[string]string{"3": "in.the.URL.of.a.socket", "4": "in.a.variable.for.a.socket", "5": "in.a.file"} {
		conn := server.Client.Conn()
		conn.Do(t.Context(), "SELECT", db)
		if n := conn.Exists(t.Context(), want+":{u1}:slots").Val(); n != 1 {
			t.Errorf("database %s has not the slots of %q", db, want)
		}
		_ = conn.Close()
	}
}

func TestHundredConnectionsWithoutHelloAndClient_D05(t *testing.T) {
	t.Parallel()
	node := redistest.StartNode(t, redistest.NodeOptions{})
	node.Do(append(readmesACL(t), "-hello", "-client|setname", "-info")...)
	s := start(t, "REDIS_URL=redis://streamcap:password@"+node.Address(), "ACQUIRE_TIMEOUT=10s", "LOG_LEVEL=debug")
	eventually(t, "the self-tests have ended", func() bool { return len(s.log.find("event", "self_test")) == 4 })
	for n := range 100 {
		s.acquire(fmt.Sprint("u", n), "r1", "204 held")
		node.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	if received := regexp.MustCompile(`total_connections_received:\d{3,}`).FindString(node.Client.Info(t.Context(), "stats").Val()); received == "" {
		t.Error("these were not a hundred connections")
	}
	for _, level := range []string{"error", "warn"} {
		for _, line := range s.log.find("level", level) {
			if line["role"] != slotstore.RoleAdmin { // its sample goes on meanwhile, and may be cut again when it is tried again
				t.Errorf("a line of level %s: %v", level, line)
			}
		}
	}
}

func readmesACL(t *testing.T) []string {
	t.Helper()
	return strings.Fields(regexp.MustCompile(`(?m)^ACL SETUSER streamcap .*$`).FindString(readFile(t, "README.md")))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
