package main

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// loadOne loads a single setting; the others have their defaults.
func loadOne(name, value string) (config, error) {
	return loadConfig([]string{envPrefix + name + "=" + value})
}

// wantMistakes holds an error against the exact lines of the message, and the
// count above them.
func wantMistakes(t *testing.T, err error, lines ...string) {
	t.Helper()
	want := "1 mistake in the settings:"
	if len(lines) > 1 {
		want = strconv.Itoa(len(lines)) + " mistakes in the settings:"
	}
	for _, line := range lines {
		want += "\n  " + line
	}
	if err == nil {
		t.Errorf("no mistake was found, want:\n%s", want)
	} else if err.Error() != want {
		t.Errorf("got:\n%s\nwant:\n%s", err, want)
	}
}

func defaults(t *testing.T) config {
	t.Helper()
	cfg, err := loadConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDefaultsAreTheContracts(t *testing.T) {
	want := config{
		Listen:            listenAddress{"tcp", "127.0.0.1:9180"},
		AdminListen:       listenAddress{"tcp", "127.0.0.1:9181"},
		SocketMode:        0o666,
		KeyPrefix:         "streamcap",
		DefaultLimit:      1,
		SlotTTL:           120 * time.Second,
		InitialTTL:        120 * time.Second,
		HeartbeatInterval: 20 * time.Second,
		Enforce:           true,
		OnStoreFailure:    "open",
		OnMissingID:       "allow",
		DenyStatus:        403,
		AcquireTimeout:    100 * time.Millisecond,
		HeartbeatTimeout:  200 * time.Millisecond,
		ReleaseTimeout:    200 * time.Millisecond,
		AdminTimeout:      2 * time.Second,
		LogLevel:          "info",
		LogFormat:         "json",
	}
	if got := defaults(t); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestDurationNeedsAUnit_C01(t *testing.T) {
	const (
		noDuration = "is not a duration: write a number and its unit (ms, s, m, h) without a space, at most 8760h"
		tooShort   = "must be at least 1ms"
	)
	for _, test := range []struct {
		value   string
		want    time.Duration
		problem string
	}{
		{value: "120s", want: 2 * time.Minute},
		{value: "2m", want: 2 * time.Minute},
		{value: " 120s", want: 2 * time.Minute},
		{value: "120s\n", want: 2 * time.Minute},
		{value: "1h2m3.5s", want: time.Hour + 2*time.Minute + 3500*time.Millisecond},
		{value: "8760h", want: maxDuration},
		{value: "120", problem: "has no unit: 120s is seconds, 120ms milliseconds"},
		{value: "120000000000", problem: "has no unit: 120000000000s is seconds, 120000000000ms milliseconds"},
		{value: "120 s", problem: noDuration},
		{value: "2 minutes", problem: noDuration},
		{value: "1e3s", problem: noDuration},
		{value: "2d", problem: noDuration},
		{value: "1.5", problem: noDuration},
		{value: "99999999999999999999h", problem: noDuration},
		{value: "-5s", problem: "must not be negative"},
		{value: "0", problem: tooShort},
		{value: "0s", problem: tooShort},
		{value: "999us", problem: tooShort},
		{value: "8761h", problem: "must be at most 8760h, which is a year"},
		{value: "2562047h47m16s", problem: "must be at most 8760h, which is a year"},
	} {
		t.Run(test.value, func(t *testing.T) {
			cfg, err := loadOne("SLOT_TTL", test.value)
			if test.problem != "" {
				wantMistakes(t, err, `STREAMCAP_SLOT_TTL="`+strings.TrimSpace(test.value)+`": `+test.problem+` (example: 120s)`)
			} else if err != nil || cfg.SlotTTL != test.want {
				t.Errorf("got %v, %v, want %v", cfg.SlotTTL, err, test.want)
			}
		})
	}
}

func TestEveryDurationNeedsAUnit_C01(t *testing.T) {
	for _, s := range settings() {
		if reflect.TypeFor[config]().FieldByIndex(s.index).Type != reflect.TypeFor[time.Duration]() {
			continue
		}
		_, err := loadOne(s.name, "20")
		wantMistakes(t, err, envPrefix+s.name+`="20": has no unit: 20s is seconds, 20ms milliseconds (example: `+s.example()+`)`)
		if _, err = loadOne(s.name, "0"); s.name == "MAX_STREAM_AGE" {
			if err != nil {
				t.Errorf("0 means no maximum age, got %v", err)
			}
			continue
		}
		wantMistakes(t, err, envPrefix+s.name+`="0": must be at least 1ms (example: `+s.example()+`)`)
	}
}

func TestEmptyIsUnset_C02(t *testing.T) {
	for _, s := range settings() {
		for _, empty := range []string{"", " ", "\t\n", `""`, `''`, ` "" `} {
			if cfg, err := loadOne(s.name, empty); err != nil || !reflect.DeepEqual(cfg, defaults(t)) {
				t.Errorf("%s=%q is not unset: %+v, %v", s.name, empty, cfg, err)
			}
		}
	}
}

func TestEmptyAdminUsersOpenNothing_P06(t *testing.T) {
	for _, empty := range []string{"", " ", `""`, `''`} {
		if cfg, err := loadOne("ADMIN_USERS", empty); err != nil || len(cfg.AdminUsers) != 0 {
			t.Errorf("ADMIN_USERS=%q: %v, %v", empty, cfg.AdminUsers, err)
		}
	}
}

func TestQuotesAreAMistake_C02(t *testing.T) {
	const quotes = ": the quotes are part of the value, leave them out (example: "
	_, err := loadConfig([]string{
		`STREAMCAP_REDIS_URL="redis://h"`,
		`STREAMCAP_REDIS_MODE=cluster`,
		`STREAMCAP_SLOT_TTL="120s"`,
		`STREAMCAP_ON_STORE_FAILURE='closed'`,
		`STREAMCAP_BACKEND_TOKEN="hunter2"`,
		`STREAMCAP_LOG_LEVEL="`,
	})
	wantMistakes(t, err,
		`STREAMCAP_REDIS_URL=***`+quotes+`redis://redis.internal:6379)`,
		`STREAMCAP_SLOT_TTL="\"120s\""`+quotes+`120s)`,
		`STREAMCAP_ON_STORE_FAILURE="'closed'"`+quotes+`open)`,
		`STREAMCAP_BACKEND_TOKEN=***`+quotes+`the output of: openssl rand -hex 32)`,
		`STREAMCAP_LOG_LEVEL="\"": must be debug, info, warn or error (example: info)`,
	)
}

func TestLimitsSplitAtTheLastColon_C07(t *testing.T) {
	const limitIs = "must be -1 (unlimited), or 0 (nothing) to 999999999"
	for _, test := range []struct {
		value   string
		want    limits
		problem string
	}{
		{value: "free:1,paid:3", want: limits{"free": 1, "paid": 3}},
		{value: "team:eu:5,free:1", want: limits{"team:eu": 5, "free": 1}},
		{value: " free : 1 , staff:-1,none:0 ", want: limits{"free": 1, "staff": -1, "none": 0}},
		{value: "a:999999999", want: limits{"a": 999999999}},
		{value: "free:1,free:2", problem: `plan "free" comes twice`},
		{value: "free:-3", problem: `the limit of entry "free:-3" ` + limitIs},
		{value: "free:99999999999", problem: `the limit of entry "free:99999999999" ` + limitIs},
		{value: "free:1000000000", problem: `the limit of entry "free:1000000000" ` + limitIs},
		{value: "free:", problem: `the limit of entry "free:" ` + limitIs},
		{value: "free:+1", problem: `the limit of entry "free:+1" ` + limitIs},
		{value: "free", problem: `entry "free" has no colon and limit`},
		{value: ":1", problem: `entry ":1" has no plan`},
		{value: "free:1,", problem: `an entry between the commas is empty`},
		{value: "a\x01:1", problem: `entry "a\x01:1" has a control character`},
		{value: "free,:1,a:-3", problem: `entry "free" has no colon and limit; entry ":1" has no plan; the limit of entry "a:-3" ` + limitIs},
	} {
		t.Run(test.value, func(t *testing.T) {
			cfg, err := loadOne("LIMITS", test.value)
			if test.problem != "" {
				l := loading{known: settings(), values: map[string]string{"LIMITS": test.value}}
				s, _ := l.setting("LIMITS")
				wantMistakes(t, err, `STREAMCAP_LIMITS=`+showValue(s, test.value)+`: `+test.problem+` (example: free:1,paid:3)`)
			} else if err != nil || !reflect.DeepEqual(cfg.Limits, test.want) {
				t.Errorf("got %v, %v, want %v", cfg.Limits, err, test.want)
			}
		})
	}
}

func TestLimitHasOneMeaning_A08(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "-1": -1, "": 1, "7": 7, "999999999": 999999999} {
		if cfg, err := loadOne("DEFAULT_LIMIT", value); err != nil || cfg.DefaultLimit != want {
			t.Errorf("DEFAULT_LIMIT=%q: got %d, %v, want %d", value, cfg.DefaultLimit, err, want)
		}
	}
	for _, value := range []string{"-2", "1000000000", "three", "1.5", "+1", "0x1", "-0"} {
		_, err := loadOne("DEFAULT_LIMIT", value)
		wantMistakes(t, err, `STREAMCAP_DEFAULT_LIMIT="`+value+`": must be -1 (unlimited), or 0 (nothing) to 999999999 (example: 1)`)
	}
}

func TestSlotTTLNeedsThreeHeartbeats_H07(t *testing.T) {
	_, err := loadConfig([]string{"STREAMCAP_SLOT_TTL=20s", "STREAMCAP_HEARTBEAT_INTERVAL=20s"})
	wantMistakes(t, err, `STREAMCAP_SLOT_TTL="20s": must be at least 3 times STREAMCAP_HEARTBEAT_INTERVAL="20s" (example: 1m0s)`)
	_, err = loadOne("SLOT_TTL", "59.999s")
	wantMistakes(t, err, `STREAMCAP_SLOT_TTL="59.999s": must be at least 3 times STREAMCAP_HEARTBEAT_INTERVAL, by default 20s (example: 1m0s)`)
	_, err = loadOne("HEARTBEAT_INTERVAL", "41s")
	wantMistakes(t, err, `STREAMCAP_HEARTBEAT_INTERVAL="41s": must be at most a third of STREAMCAP_SLOT_TTL, by default 120s (example: 40s)`)
	if _, err = loadConfig([]string{"STREAMCAP_SLOT_TTL=60s", "STREAMCAP_HEARTBEAT_INTERVAL=20s"}); err != nil {
		t.Errorf("exactly three heartbeats are enough: %v", err)
	}
}

func TestInitialTTLNeedsOneHeartbeat_C09(t *testing.T) {
	_, err := loadOne("INITIAL_TTL", "19s")
	wantMistakes(t, err, `STREAMCAP_INITIAL_TTL="19s": must be at least STREAMCAP_HEARTBEAT_INTERVAL, by default 20s (example: 20s)`)
	cfg, err := loadOne("INITIAL_TTL", "20s")
	if err != nil || cfg.InitialTTL != 20*time.Second {
		t.Errorf("got %v, %v", cfg.InitialTTL, err)
	}
	cfg, err = loadOne("SLOT_TTL", "90s")
	if err != nil || cfg.InitialTTL != 90*time.Second {
		t.Errorf("unset, it is SLOT_TTL: got %v, %v", cfg.InitialTTL, err)
	}
}

func TestListenersShareNoAddress_C09(t *testing.T) {
	_, err := loadConfig([]string{"STREAMCAP_LISTEN=:9000", "STREAMCAP_ADMIN_LISTEN=127.0.0.1:9000"})
	wantMistakes(t, err, `STREAMCAP_ADMIN_LISTEN="127.0.0.1:9000": is the same address as STREAMCAP_LISTEN=":9000" (example: 127.0.0.1:9181)`)
	_, err = loadOne("LISTEN", "127.0.0.1:9181")
	wantMistakes(t, err, `STREAMCAP_LISTEN="127.0.0.1:9181": is the same address as STREAMCAP_ADMIN_LISTEN, by default 127.0.0.1:9181 (example: 127.0.0.1:9180)`)
	_, err = loadConfig([]string{"STREAMCAP_LISTEN=unix:/run/s", "STREAMCAP_NGINX_LOG_LISTEN=unix:/run//s"})
	wantMistakes(t, err, `STREAMCAP_NGINX_LOG_LISTEN="unix:/run//s": is the same address as STREAMCAP_LISTEN="unix:/run/s" (example: 127.0.0.1:9514)`)
	for _, fine := range [][]string{
		{"STREAMCAP_LISTEN=127.0.0.1:0", "STREAMCAP_ADMIN_LISTEN=127.0.0.1:0"},
		{"STREAMCAP_LISTEN=127.0.0.1:9000", "STREAMCAP_ADMIN_LISTEN=10.0.0.1:9000"},
		{"STREAMCAP_LISTEN=127.0.0.1:9514", "STREAMCAP_NGINX_LOG_LISTEN=127.0.0.1:9514"},
	} {
		if _, err := loadConfig(fine); err != nil {
			t.Errorf("%v: %v", fine, err)
		}
	}
}

func TestListenAddresses(t *testing.T) {
	const wholePath = "must name a socket by its whole path, as in unix:/run/streamcap/streamcap.sock"
	for _, test := range []struct {
		value   string
		want    listenAddress
		problem string
	}{
		{value: "127.0.0.1:9280", want: listenAddress{"tcp", "127.0.0.1:9280"}},
		{value: ":9280", want: listenAddress{"tcp", ":9280"}},
		{value: "[::1]:0", want: listenAddress{"tcp", "[::1]:0"}},
		{value: "localhost:080", want: listenAddress{"tcp", "localhost:80"}},
		{value: "unix:/run/streamcap.sock", want: listenAddress{"unix", "/run/streamcap.sock"}},
		{value: "unix:///run/streamcap.sock", want: listenAddress{"unix", "/run/streamcap.sock"}},
		{value: "unix:/" + strings.Repeat("x", 106), want: listenAddress{"unix", "/" + strings.Repeat("x", 106)}},
		{value: "9180", problem: "is a port alone: write 127.0.0.1:9180 for this machine, or :9180 for every address"},
		{value: "127.0.0.1", problem: "has no port"},
		{value: "127.0.0.1:", problem: "has a port that isn't 0 to 65535"},
		{value: "127.0.0.1:http", problem: "has a port that isn't 0 to 65535"},
		{value: "127.0.0.1:65536", problem: "has a port that isn't 0 to 65535"},
		{value: "127.0.0.1:+1", problem: "has a port that isn't 0 to 65535"},
		{value: "::1:9180", problem: "must be host:port, with brackets around an IPv6 address"},
		{value: "*:9180", problem: "has a host that isn't one: write :9180 for every address"},
		{value: "a b:9180", problem: "has a host that is neither a name nor an IP address"},
		{value: "http://127.0.0.1:9180", problem: "is a URL: write host:port alone"},
		{value: "/run/streamcap.sock", problem: "is a path: write unix: before it"},
		{value: "unix:streamcap.sock", problem: wholePath},
		{value: "unix:", problem: wholePath},
		{value: "unix:/run/", problem: wholePath},
		{value: "unix:/" + strings.Repeat("x", 107), problem: "is longer than the 107 bytes that the path of a socket may have"},
	} {
		t.Run(test.value, func(t *testing.T) {
			cfg, err := loadOne("LISTEN", test.value)
			if test.problem != "" {
				wantMistakes(t, err, `STREAMCAP_LISTEN="`+test.value+`": `+test.problem+` (example: 127.0.0.1:9180)`)
			} else if err != nil || cfg.Listen != test.want {
				t.Errorf("got %v, %v, want %v", cfg.Listen, err, test.want)
			}
		})
	}
}

func TestNginxLogListenIsDatagrams(t *testing.T) {
	for value, want := range map[string]listenAddress{
		"":               {},
		"127.0.0.1:9514": {"udp", "127.0.0.1:9514"},
		"unix:/run/log":  {"unixgram", "/run/log"},
	} {
		if cfg, err := loadOne("NGINX_LOG_LISTEN", value); err != nil || cfg.NginxLogListen != want {
			t.Errorf("%q: got %#v, %v", value, cfg.NginxLogListen, err)
		}
	}
}

func TestListenAloneForTheHealthcheck(t *testing.T) {
	got, err := loadListen([]string{"STREAMCAP_LISTEN=127.0.0.1:9181", "STREAMCAP_SLOT_TTL=120", "STREAMCAP_NONSENSE=1", "PATH=/bin"})
	if err != nil || got != (listenAddress{"tcp", "127.0.0.1:9181"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err = loadListen(nil); err != nil || got != (listenAddress{"tcp", "127.0.0.1:9180"}) {
		t.Errorf("got %v, %v, want the default", got, err)
	}
	_, err = loadListen([]string{"STREAMCAP_LISTEN=9180"})
	wantMistakes(t, err, `STREAMCAP_LISTEN="9180": is a port alone: write 127.0.0.1:9180 for this machine, or :9180 for every address (example: 127.0.0.1:9180)`)
}

func TestWordsAndFlags(t *testing.T) {
	_, err := loadConfig([]string{
		"STREAMCAP_ENFORCE=yes",
		"STREAMCAP_ON_STORE_FAILURE=fail",
		"STREAMCAP_ON_MISSING_ID=Deny",
		"STREAMCAP_DENY_STATUS=500",
		"STREAMCAP_SOCKET_MODE=888",
		"STREAMCAP_KEY_PREFIX=a b",
		"STREAMCAP_BACKEND_TOKEN=two words",
		"STREAMCAP_LOG_FORMAT=text",
	})
	wantMistakes(t, err,
		`STREAMCAP_SOCKET_MODE="888": must be the permissions of a file in octal, 0001 to 0777 (example: 0666)`,
		`STREAMCAP_KEY_PREFIX="a b": must be 1 to 64 of the characters A-Z a-z 0-9 . _ : - (example: streamcap)`,
		`STREAMCAP_ENFORCE="yes": must be true or false (example: true)`,
		`STREAMCAP_ON_STORE_FAILURE="fail": must be open, closed or local (example: open)`,
		`STREAMCAP_ON_MISSING_ID="Deny": must be allow or deny (example: allow)`,
		`STREAMCAP_DENY_STATUS="500": must be 403 or 429 (example: 403)`,
		`STREAMCAP_BACKEND_TOKEN=***: must be printable ASCII without spaces, since it travels in a header (example: the output of: openssl rand -hex 32)`,
		`STREAMCAP_LOG_FORMAT="text": must be json or console (example: json)`,
	)
	for _, mode := range []string{"0", "0000", "01000", "-1", "rw"} {
		_, err = loadOne("SOCKET_MODE", mode)
		wantMistakes(t, err, `STREAMCAP_SOCKET_MODE="`+mode+`": must be the permissions of a file in octal, 0001 to 0777 (example: 0666)`)
	}
	cfg, err := loadConfig([]string{"STREAMCAP_ENFORCE=0", "STREAMCAP_SOCKET_MODE=0o660", "STREAMCAP_DENY_STATUS=429", "STREAMCAP_KEY_PREFIX=a:b.c_d-e"})
	if err != nil || cfg.Enforce || cfg.SocketMode != 0o660 || cfg.DenyStatus != 429 || cfg.KeyPrefix != "a:b.c_d-e" {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

func TestAdminUsers(t *testing.T) {
	const (
		alice = "alice:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90" // alice
		bob   = "bob:81B637D8FCD2C6DA6359E6963113A1170DE795E4B725B84D1E0B4CFD9EC58CE9"   // bob
	)
	cfg, err := loadOne("ADMIN_USERS", alice+", "+bob)
	want := adminUsers{"alice": sha256.Sum256([]byte("alice")), "bob": sha256.Sum256([]byte("bob"))}
	if err != nil || !reflect.DeepEqual(cfg.AdminUsers, want) {
		t.Errorf("got %v, %v", cfg.AdminUsers, err)
	}
	for value, problem := range map[string]string{
		"alice:hunter2":          "entry 1 has a hash that isn't 64 hex digits (it has 7 characters)",
		"alice":                  "entry 1 has no colon between operator and hash",
		alice + ",":              "entry 2 is empty",
		alice + "," + alice:      `entry 2 names operator "alice" again`,
		"eu:" + alice:            "entry 1 has two colons: an operator's name can't hold one",
		alice[len("alice"):]:     "entry 1 has an operator's name that is empty, or has spaces around it or control characters in it",
		"alice" + bob[3:] + "00": "entry 1 has a hash that isn't 64 hex digits (it has 66 characters)",
		"alice:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "entry 1 has the hash of an empty token",
	} {
		_, err := loadOne("ADMIN_USERS", value)
		wantMistakes(t, err, `STREAMCAP_ADMIN_USERS=***: `+problem+` (example: alice:<the 64 hex digits of: printf %s TOKEN | sha256sum>)`)
	}
}

func TestAuditLogHasADirectory(t *testing.T) {
	directory := t.TempDir()
	if cfg, err := loadOne("AUDIT_LOG", directory+"/audit.log"); err != nil || cfg.AuditLog != directory+"/audit.log" {
		t.Errorf("got %q, %v", cfg.AuditLog, err)
	}
	_, err := loadOne("AUDIT_LOG", directory+"/nowhere/audit.log")
	wantMistakes(t, err, `STREAMCAP_AUDIT_LOG="`+directory+`/nowhere/audit.log": is in a directory that doesn't exist or can't be entered (example: /var/log/streamcap/audit.log)`)
	_, err = loadOne("AUDIT_LOG", directory)
	wantMistakes(t, err, `STREAMCAP_AUDIT_LOG="`+directory+`": is a directory, not a file (example: /var/log/streamcap/audit.log)`)
}

func TestUnknownNameGetsTheNearest(t *testing.T) {
	_, err := loadConfig([]string{
		"STREAMCAP_REDIS_PASWORD=hunter2",
		"STREAMCAP_HEARTBEAT_INTERVALL=20s",
		"STREAMCAP_loglevel=debug",
		"STREAMCAP_loglevel=info",
		"STREAMCAP_EMPTY=",
		"STREAMCAP_QUOTED=\"\"",
		"SLOT_TTL=120",
		"streamcap_slot_ttl=120",
	})
	wantMistakes(t, err,
		"STREAMCAP_HEARTBEAT_INTERVALL=***: there is no such setting, did you mean STREAMCAP_HEARTBEAT_INTERVAL? (example: STREAMCAP_HEARTBEAT_INTERVAL=20s)",
		"STREAMCAP_REDIS_PASWORD=***: there is no such setting, did you mean STREAMCAP_REDIS_PASSWORD? (example: STREAMCAP_REDIS_PASSWORD=the password as it is, nothing encoded)",
		"STREAMCAP_loglevel=***: there is no such setting, did you mean STREAMCAP_LOG_LEVEL? (example: STREAMCAP_LOG_LEVEL=info)",
	)
}

func TestNamesOfContainerPlatformsPass(t *testing.T) {
	for _, pair := range []string{
		"SERVICE_HOST=10.0.0.1", "SERVICE_PORT=9180", "SERVICE_PORT_HTTP=9180",
		"PORT=tcp://10.0.0.1:9180", "PORT_9180_TCP=tcp://10.0.0.1:9180", "PORT_9180_TCP_ADDR=10.0.0.1",
		"NAME=/web/streamcap", "ENV_PATH=/bin",
		"REDIS_SERVICE_HOST=10.0.0.2", "REDIS_SERVICE_PORT=6379", "REDIS_SERVICE_PORT_REDIS=6379",
		"REDIS_PORT=tcp://10.0.0.2:6379", "DNS_PORT=udp://10.0.0.3:53",
		"REDIS_PORT_6379_TCP=tcp://10.0.0.2:6379", "REDIS_PORT_6379_TCP_PROTO=tcp",
	} {
		if _, err := loadConfig([]string{envPrefix + pair}); err != nil {
			t.Errorf("%s: %v", pair, err)
		}
	}
	for _, pair := range []string{"REDIS_PORT=6379", "REDIS_HOST=10.0.0.2", "REDIS_PORT_TCP=1", "SERVICE=1", "ENVIRONMENT=1"} {
		if _, err := loadConfig([]string{envPrefix + pair}); err == nil {
			t.Errorf("%s: no mistake", pair)
		}
	}
}

func TestAllMistakesInOneMessage_C09(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "password")
	_, err := loadConfig([]string{
		"STREAMCAP_SLOT_TLL=120s",
		"STREAMCAP_LOG_LEVEL=trace",
		"STREAMCAP_INITIAL_TTL=1s",
		"STREAMCAP_DEFAULT_LIMIT=-2",
		"STREAMCAP_REDIS_PASSWORD_FILE=" + missing,
		"STREAMCAP_REDIS_URL=redis://h1,h2",
		"STREAMCAP_LISTEN=9180",
	})
	wantMistakes(t, err,
		`STREAMCAP_LISTEN="9180": is a port alone: write 127.0.0.1:9180 for this machine, or :9180 for every address (example: 127.0.0.1:9180)`,
		`STREAMCAP_REDIS_URL="redis://h1,h2": has several hosts, which needs STREAMCAP_REDIS_MODE=cluster or sentinel (example: redis://redis.internal:6379)`,
		`STREAMCAP_REDIS_PASSWORD_FILE="`+missing+`": can't be read: no such file or directory (example: /run/secrets/redis-password)`,
		`STREAMCAP_DEFAULT_LIMIT="-2": must be -1 (unlimited), or 0 (nothing) to 999999999 (example: 1)`,
		`STREAMCAP_INITIAL_TTL="1s": must be at least STREAMCAP_HEARTBEAT_INTERVAL, by default 20s (example: 20s)`,
		`STREAMCAP_LOG_LEVEL="trace": must be debug, info, warn or error (example: info)`,
		`STREAMCAP_SLOT_TLL=***: there is no such setting, did you mean STREAMCAP_SLOT_TTL? (example: STREAMCAP_SLOT_TTL=120s)`,
	)
}

func TestALongValueIsCut(t *testing.T) {
	_, err := loadOne("KEY_PREFIX", strings.Repeat("x", 100_000))
	wantMistakes(t, err, `STREAMCAP_KEY_PREFIX="`+strings.Repeat("x", 200)+`"…: must be 1 to 64 of the characters A-Z a-z 0-9 . _ : - (example: streamcap)`)
}

// An example that is itself a mistake would send people in circles.
func TestExamplesAreRight(t *testing.T) {
	companions := map[string][]string{
		"REDIS_USERNAME":        {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD=p"},
		"REDIS_PASSWORD":        {"STREAMCAP_REDIS_URL=redis://h"},
		"REDIS_SENTINEL_MASTER": {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_MODE=sentinel"},
	}
	for _, s := range settings() {
		example := s.example()
		if s.name == "ADMIN_USERS" || s.name == "BACKEND_TOKEN" {
			continue // these tell a command
		}
		if filepath.IsAbs(example) {
			if _, err := os.Stat(example); err != nil {
				continue // a file of the operator's
			}
		}
		if _, err := loadConfig(append(companions[s.name], envPrefix+s.name+"="+example)); err != nil {
			t.Errorf("%s: its own example is a mistake: %v", s.name, err)
		}
	}
}
