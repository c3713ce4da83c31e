package main

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// trickyPassword is the one of case C04.
const trickyPassword = "p@ss/w#rd%:?&+ "

const badCredentials = "has a special character as it is in the user name or password, one of / ? # % @ [ ] or a space or the like:" +
	" percent-encode it (/ is %2F, @ is %40), or set STREAMCAP_REDIS_PASSWORD, which takes every character as it is (example: redis://redis.internal:6379)"

func writeFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPasswordMayHoldAnything_C04(t *testing.T) {
	for way, environ := range map[string][]string{
		"variable":             {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD=" + trickyPassword},
		"variable, line end":   {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD=" + trickyPassword + "\n"},
		"variable beats URL":   {"STREAMCAP_REDIS_URL=redis://:other@h", "STREAMCAP_REDIS_PASSWORD=" + trickyPassword},
		"file":                 {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=" + writeFile(t, trickyPassword)},
		"file, line end":       {"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=" + writeFile(t, trickyPassword+"\n")},
		"file beats URL":       {"STREAMCAP_REDIS_URL=redis://:other@h", "STREAMCAP_REDIS_PASSWORD_FILE=" + writeFile(t, trickyPassword+"\r\n")},
		"URL, percent-encoded": {"STREAMCAP_REDIS_URL=redis://:p%40ss%2Fw%23rd%25%3A%3F%26%2B%20@h"},
	} {
		if cfg, err := loadConfig(environ); err != nil || cfg.Redis.Password != trickyPassword {
			t.Errorf("%s: got %q, %v", way, cfg.Redis.Password, err)
		}
	}
	cfg, err := loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=" + writeFile(t, "a\n\n")})
	if err != nil || cfg.Redis.Password != "a\n" {
		t.Errorf("one line end alone is taken off a file: got %q, %v", cfg.Redis.Password, err)
	}
	cfg, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", `STREAMCAP_REDIS_PASSWORD="p"`})
	if err != nil || cfg.Redis.Password != `"p"` {
		t.Errorf("quotes may belong to a password: got %q, %v", cfg.Redis.Password, err)
	}
	cfg, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://eve:p@h", "STREAMCAP_REDIS_USERNAME=bob"})
	if err != nil || cfg.Redis.Username != "bob" || cfg.Redis.Password != "p" {
		t.Errorf("the user name beats the URL's: got %q %q, %v", cfg.Redis.Username, cfg.Redis.Password, err)
	}
}

func TestRawPasswordInTheURLIsAMistake_C04(t *testing.T) {
	for _, password := range []string{
		trickyPassword, "p@ss", "p/ss", "p?ss", "p#ss", "p%ss", "p ss", "p%4", "p[ss", "p\"ss", "pässword", "12345?ss", "6379/0",
	} {
		for _, format := range []string{"redis://:%s@h:6379/0", "rediss://user:%s@h1,h2", "unix://:%s@/run/redis.sock?db=2"} {
			_, err := loadOne("REDIS_URL", fmt.Sprintf(format, password))
			wantMistakes(t, err, "STREAMCAP_REDIS_URL=***: "+badCredentials)
		}
	}
}

func TestPasswordFiles_C04(t *testing.T) {
	const example = " (example: /run/secrets/redis-password)"
	missing, empty := filepath.Join(t.TempDir(), "missing"), writeFile(t, "\n")
	_, err := loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=" + missing})
	wantMistakes(t, err, `STREAMCAP_REDIS_PASSWORD_FILE="`+missing+`": can't be read: no such file or directory`+example)
	_, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=" + empty})
	wantMistakes(t, err, `STREAMCAP_REDIS_PASSWORD_FILE="`+empty+`": is an empty file`+example)
	_, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD_FILE=hunter2"})
	wantMistakes(t, err, `STREAMCAP_REDIS_PASSWORD_FILE=***: can't be read: no such file or directory`+example)
	_, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_PASSWORD=p", "STREAMCAP_REDIS_PASSWORD_FILE=" + missing})
	wantMistakes(t, err, `STREAMCAP_REDIS_PASSWORD_FILE="`+missing+`": is set together with STREAMCAP_REDIS_PASSWORD: unset one of them`+example)
}

func TestRedisURLShapes_C06(t *testing.T) {
	const (
		noHost   = "has no host: name it, localhost is never meant by itself"
		badHost  = "has a host that is neither a name nor an IP address"
		badPort  = "has a port that isn't 1 to 65535"
		noScheme = "has no scheme: it begins with redis://, rediss:// (TLS) or unix://"
		scheme   = "has an unknown scheme: it begins with redis:// (Valkey too), rediss:// (TLS) or unix://"
		brackets = "has brackets without an IPv6 address in them, which are written [::1]:6379"
		behind   = "has something other than a database number behind the hosts: write /2 for database 2; the name of a sentinel's primary goes into STREAMCAP_REDIS_SENTINEL_MASTER"
		socket   = "must name a socket by its whole path of at most 107 bytes, unix:///run/redis.sock"
	)
	for _, test := range []struct {
		url     string
		want    redisConfig // of mode standalone and network tcp, unless said
		shown   string      // the quoted URL, unless said
		problem string
	}{
		{url: "redis://h", want: redisConfig{Addresses: []string{"h:6379"}}},
		{url: "redis://h/", want: redisConfig{Addresses: []string{"h:6379"}}},
		{url: "REDIS://h:1234/15", want: redisConfig{Addresses: []string{"h:1234"}, DB: 15}},
		{url: "redis://h?db=2", want: redisConfig{Addresses: []string{"h:6379"}, DB: 2}},
		{url: "redis://[::1]:6379/0", want: redisConfig{Addresses: []string{"[::1]:6379"}}},
		{url: "redis://[::1]", want: redisConfig{Addresses: []string{"[::1]:6379"}}},
		{url: "redis://my_redis.internal.:06379", want: redisConfig{Addresses: []string{"my_redis.internal.:6379"}}},
		{url: "redis://user:p:w@10.0.0.1", want: redisConfig{Addresses: []string{"10.0.0.1:6379"}, Username: "user", Password: "p:w"}},
		{url: "redis://:@h", want: redisConfig{Addresses: []string{"h:6379"}}},
		{url: "unix:///run/redis.sock", want: redisConfig{Network: "unix", Addresses: []string{"/run/redis.sock"}}},
		{url: "unix:///run/redis.sock?db=2", want: redisConfig{Network: "unix", Addresses: []string{"/run/redis.sock"}, DB: 2}},
		{url: "unix://u:p@/run/re%20dis.sock", want: redisConfig{Network: "unix", Addresses: []string{"/run/re dis.sock"}, Username: "u", Password: "p"}},

		{url: "redis.internal:6379", problem: noScheme},
		{url: "redis.internal", problem: noScheme, shown: "***"},
		{url: "redis:h", problem: noScheme, shown: "***"},
		{url: "://h", problem: scheme, shown: "***"},
		{url: "valkey://h", problem: scheme},
		{url: "http://h", problem: scheme},
		{url: "redis://", problem: noHost},
		{url: "redis://:6379", problem: noHost},
		{url: "redis:///0", problem: noHost},
		{url: "redis://:secret@", problem: noHost, shown: "***"},
		{url: "redis://:secret", problem: noHost, shown: "***"},
		{url: "redis://h1,,h2", problem: noHost},
		{url: "redis://h1,", problem: noHost},
		{url: "redis://::1:6379", problem: "has an IPv6 address without brackets, or too many colons: write [::1]:6379", shown: "***"},
		{url: "redis://[::1", problem: brackets, shown: "***"},
		{url: "redis://[h]:6379", problem: brackets, shown: "***"},
		{url: "redis://[::1]6379", problem: brackets, shown: "***"},
		{url: "redis://[10.0.0.1]", problem: brackets},
		{url: "redis://h:", problem: badPort},
		{url: "redis://h:0", problem: badPort},
		{url: "redis://h:65536", problem: badPort},
		{url: "redis://h:redis", problem: badPort, shown: "***"},
		{url: "redis://h:+1", problem: badPort, shown: "***"},
		{url: "redis://-h", problem: badHost},
		{url: "redis://h ost", problem: badHost, shown: "***"},
		{url: "redis://h/mymaster", problem: behind},
		{url: "redis://h/-1", problem: behind},
		{url: "redis://h/123456", problem: behind},
		{url: "redis://h/1/2", problem: behind},
		{url: "redis://h#1", problem: "has a # in it, which means nothing here", shown: "***"},
		{url: "redis://h?timeout=1s", problem: "has an unknown parameter, timeout: db is the only one, the timeouts have settings of their own", shown: `"redis://h?***"`},
		{url: "redis://h?db=2&hunter2", problem: "has an unknown parameter: db is the only one", shown: `"redis://h?***"`},
		{url: "redis://h?db=two", problem: "has a parameter db that isn't a number, as in ?db=2", shown: `"redis://h?***"`},
		{url: "redis://h/1?db=1", problem: "names the database twice", shown: `"redis://h/1?***"`},
		{url: "redis://h?db=1&db=2", problem: "names the database twice", shown: `"redis://h?***"`},
		{url: "unix://", problem: socket},
		{url: "unix:///", problem: socket},
		{url: "unix:///run/%zz", problem: socket, shown: "***"},
		{url: "unix:///" + strings.Repeat("x", 107), problem: socket},
		{url: "unix://run/redis.sock", problem: "has a host before the path: a socket is written with three slashes, unix:///run/redis.sock"},
		{url: "unix:/run/redis.sock", problem: noScheme, shown: "***"},
	} {
		t.Run(test.url, func(t *testing.T) {
			cfg, err := loadOne("REDIS_URL", test.url)
			if test.problem != "" {
				shown := test.shown
				if shown == "" {
					shown = `"` + test.url + `"`
				}
				wantMistakes(t, err, "STREAMCAP_REDIS_URL="+shown+": "+test.problem+" (example: redis://redis.internal:6379)")
				return
			}
			test.want.Mode = "standalone"
			if test.want.Network == "" {
				test.want.Network = "tcp"
			}
			if err != nil || !reflect.DeepEqual(cfg.Redis, test.want) {
				t.Errorf("got %v, %v, want %v", cfg.Redis, err, test.want)
			}
		})
	}
}

func TestSeveralRedisHosts_D10(t *testing.T) {
	cfg, err := loadConfig([]string{"STREAMCAP_REDIS_URL=redis://:p@h1,h2:7000,[::1]", "STREAMCAP_REDIS_MODE=cluster"})
	want := redisConfig{Mode: "cluster", Network: "tcp", Password: "p", Addresses: []string{"h1:6379", "h2:7000", "[::1]:6379"}}
	if err != nil || !reflect.DeepEqual(cfg.Redis, want) {
		t.Errorf("got %v, %v", cfg.Redis, err)
	}
	cfg, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h1,h2:26380/3", "STREAMCAP_REDIS_MODE=sentinel", "STREAMCAP_REDIS_SENTINEL_MASTER=mymaster"})
	want = redisConfig{Mode: "sentinel", Network: "tcp", DB: 3, SentinelMaster: "mymaster", Addresses: []string{"h1:26379", "h2:26380"}}
	if err != nil || !reflect.DeepEqual(cfg.Redis, want) {
		t.Errorf("got %v, %v", cfg.Redis, err)
	}
	_, err = loadOne("REDIS_URL", "redis://h1:26379,h2:26379/mymaster")
	wantMistakes(t, err, `STREAMCAP_REDIS_URL="redis://h1:26379,h2:26379/mymaster": has something other than a database number behind the hosts: write /2 for database 2;`+
		` the name of a sentinel's primary goes into STREAMCAP_REDIS_SENTINEL_MASTER (example: redis://redis.internal:6379)`)
	_, err = loadOne("REDIS_URL", "redis://a:b@h1,a:b@h2")
	wantMistakes(t, err, "STREAMCAP_REDIS_URL=***: "+badCredentials)
}

func TestRedisSettingsThatContradict_C09(t *testing.T) {
	const url = " (example: redis://redis.internal:6379)"
	ca := writeFile(t, "")
	for _, test := range []struct {
		environ string // without the prefix, separated by spaces
		want    []string
	}{
		{"REDIS_MODE=cluster REDIS_URL=redis://h/1", []string{`STREAMCAP_REDIS_URL="redis://h/1": has a database number, and a cluster has database 0 alone` + url}},
		{"REDIS_MODE=cluster REDIS_URL=unix:///s", []string{`STREAMCAP_REDIS_URL="unix:///s": is a unix socket, which STREAMCAP_REDIS_MODE=cluster can't use` + url}},
		{"REDIS_MODE=sentinel REDIS_URL=unix:///s REDIS_SENTINEL_MASTER=m", []string{`STREAMCAP_REDIS_URL="unix:///s": is a unix socket, which STREAMCAP_REDIS_MODE=sentinel can't use` + url}},
		{"REDIS_URL=redis://h1,h2", []string{`STREAMCAP_REDIS_URL="redis://h1,h2": has several hosts, which needs STREAMCAP_REDIS_MODE=cluster or sentinel` + url}},
		{"REDIS_MODE=sentinel REDIS_URL=redis://h", []string{`STREAMCAP_REDIS_MODE="sentinel": needs STREAMCAP_REDIS_SENTINEL_MASTER, the name that the sentinels know the primary by (example: STREAMCAP_REDIS_SENTINEL_MASTER=mymaster)`}},
		{"REDIS_SENTINEL_MASTER=m REDIS_URL=redis://h", []string{`STREAMCAP_REDIS_SENTINEL_MASTER="m": needs STREAMCAP_REDIS_MODE=sentinel, and it is standalone (example: STREAMCAP_REDIS_MODE=sentinel)`}},
		{"REDIS_MODE=clustre REDIS_URL=redis://h1,h2/3", []string{`STREAMCAP_REDIS_MODE="clustre": must be standalone, cluster or sentinel (example: standalone)`}},
		{"REDIS_USERNAME=u REDIS_URL=redis://h", []string{`STREAMCAP_REDIS_USERNAME="u": has no password beside it, so that Redis would never hear of it: set STREAMCAP_REDIS_PASSWORD too (example: streamcap)`}},
		{"REDIS_URL=redis://u@h", []string{`STREAMCAP_REDIS_URL=***: has a user name and no password: write redis://user:password@host, or redis://:password@host where there is no user name, or set STREAMCAP_REDIS_PASSWORD (example: redis://streamcap:secret@redis.internal:6379)`}},
		{"REDIS_MODE=standalone", nil},
		{
			"REDIS_MODE=cluster REDIS_USERNAME=u REDIS_PASSWORD=p REDIS_PASSWORD_FILE=/f REDIS_SENTINEL_MASTER=m REDIS_CA_FILE=" + ca,
			[]string{
				`STREAMCAP_REDIS_USERNAME="u": needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
				`STREAMCAP_REDIS_PASSWORD=***: needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
				`STREAMCAP_REDIS_PASSWORD_FILE="/f": needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
				`STREAMCAP_REDIS_MODE="cluster": needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
				`STREAMCAP_REDIS_SENTINEL_MASTER="m": needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
				`STREAMCAP_REDIS_CA_FILE="` + ca + `": needs STREAMCAP_REDIS_URL (example: STREAMCAP_REDIS_URL=redis://redis.internal:6379)`,
			},
		},
	} {
		t.Run(test.environ, func(t *testing.T) {
			var environ []string
			for pair := range strings.FieldsSeq(test.environ) {
				environ = append(environ, envPrefix+pair)
			}
			_, err := loadConfig(environ)
			if test.want != nil {
				wantMistakes(t, err, test.want...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPrivateCA_D06(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // the refused handshake below
	server.StartTLS()
	defer server.Close()
	ca := writeFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	address := server.Listener.Addr().String()

	cfg, err := loadConfig([]string{"STREAMCAP_REDIS_URL=rediss://" + address, "STREAMCAP_REDIS_CA_FILE=" + ca})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Redis.TLS.MinVersion != tls.VersionTLS12 || cfg.Redis.TLS.InsecureSkipVerify {
		t.Errorf("a weaker TLS than promised: %+v", cfg.Redis.TLS)
	}
	trusting := tls.Dialer{Config: cfg.Redis.TLS}
	connection, err := trusting.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("the CA of the file is not trusted: %v", err)
	}
	if err = connection.Close(); err != nil {
		t.Error(err)
	}

	cfg, err = loadConfig([]string{"STREAMCAP_REDIS_URL=rediss://" + address})
	if err != nil {
		t.Fatal(err)
	}
	doubting := tls.Dialer{Config: cfg.Redis.TLS}
	_, err = doubting.DialContext(t.Context(), "tcp", address)
	if _, refused := errors.AsType[*tls.CertificateVerificationError](err); !refused {
		t.Errorf("without the file its server is refused, got %v", err)
	}
}

func TestCAFileIsChecked_D06(t *testing.T) {
	const example = " (example: /etc/streamcap/redis-ca.pem)"
	missing, nonsense := filepath.Join(t.TempDir(), "missing"), writeFile(t, "no certificate")
	_, err := loadConfig([]string{"STREAMCAP_REDIS_URL=rediss://h", "STREAMCAP_REDIS_CA_FILE=" + missing})
	wantMistakes(t, err, `STREAMCAP_REDIS_CA_FILE="`+missing+`": can't be read: no such file or directory`+example)
	_, err = loadConfig([]string{"STREAMCAP_REDIS_URL=redis://h", "STREAMCAP_REDIS_CA_FILE=" + nonsense})
	wantMistakes(t, err,
		`STREAMCAP_REDIS_URL="redis://h": isn't TLS, but STREAMCAP_REDIS_CA_FILE is set: write rediss://, or unset the file (example: rediss://redis.internal:6379)`,
		`STREAMCAP_REDIS_CA_FILE="`+nonsense+`": holds no certificate in PEM`+example)
}

// Each secret is put where it belongs and where it doesn't, beside mistakes of
// every kind; then the error and everything that prints settings is searched.
func TestSecretsNeverShow_C04(t *testing.T) {
	const secret = "hunter2"
	for _, s := range settings() {
		if !s.secret() && s.name != "REDIS_URL" && s.name != "REDIS_PASSWORD_FILE" {
			continue
		}
		for _, value := range []string{
			secret, secret + " x", `"` + secret + `"`, secret + ":x", "x:" + secret, "a," + secret,
			"redis://:" + secret + "@", "redis://" + secret + ":x@h/x", "redis://:" + secret, "redis://h?password=" + secret,
			"redis://:x" + secret + "/@h", "redis://h/0#" + secret, "rediss://:%" + secret + "@h", secret + "\x01@h",
		} {
			for _, name := range []string{s.name, s.name + "S", "X_" + s.name} {
				_, err := loadConfig([]string{envPrefix + name + "=" + value, "STREAMCAP_SLOT_TTL=1", "STREAMCAP_REDIS_MODE=cluster"})
				if err == nil || strings.Contains(err.Error(), secret) {
					t.Errorf("%s=%s: %v", name, value, err)
				}
			}
		}
	}

	for _, url := range []string{"redis://eve:" + secret + "@h1/2", "rediss://:" + secret + "@h", "unix://:" + secret + "@/s?db=2"} {
		cfg, err := loadOne("REDIS_URL", url)
		if err != nil || cfg.Redis.Password != secret {
			t.Fatalf("got %v, %v", cfg.Redis, err)
		}
		text, err := json.Marshal(map[string]any{"redis": cfg.Redis})
		if err != nil {
			t.Fatal(err)
		}
		for _, shown := range []string{string(text), fmt.Sprint(cfg.Redis), fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg.Redis, cfg.Redis)} {
			if strings.Contains(shown, secret) {
				t.Errorf("the password shows in %s", shown)
			}
		}
	}
}

func TestRedisPrintsAsAURL(t *testing.T) {
	for environ, want := range map[string]string{
		"REDIS_URL=": "memory",
		"REDIS_URL=redis://eve:p@h1,h2 REDIS_MODE=cluster": "redis://eve:***@h1:6379,h2:6379",
		"REDIS_URL=rediss://:p@[::1]/2":                    "rediss://:***@[::1]:6379/2",
		"REDIS_URL=unix:///run/redis.sock?db=3":            "unix:///run/redis.sock?db=3",
	} {
		var pairs []string
		for pair := range strings.FieldsSeq(environ) {
			pairs = append(pairs, envPrefix+pair)
		}
		if cfg, err := loadConfig(pairs); err != nil || cfg.Redis.String() != want {
			t.Errorf("%s: got %s, %v, want %s", environ, cfg.Redis, err, want)
		}
	}
}

// Whatever stands in a password, as it is or percent-encoded, no part of it
// comes out in an error; what is encoded right is understood.
func FuzzRedisURLNeverShowsThePassword(f *testing.F) {
	for _, password := range []string{trickyPassword, "", "a", "@", "://", "?db=", "#", "%", "%zz", "/", "[", ",", ":", "h:1,h2", "\x00", "\xff", "ä", "12345?"} {
		f.Add("redis://", password, "h:6379/0")
		f.Add("unix://", password, "/run/redis.sock?db=2")
		f.Add("", password, "")
		f.Add("x", password, "h1,h2?timeout=1s#x")
	}
	f.Fuzz(func(t *testing.T, scheme, middle, host string) {
		// The ends are words that no message and no mutated part is likely to
		// hold; they show up whenever a piece of the password does.
		const head, foot = "Qz7Head", "xK9Foot"
		password := head + middle + foot
		if strings.Contains(scheme+host, "Head") || strings.Contains(scheme+host, "Foot") {
			return // the marker stands outside the password
		}
		for _, written := range []string{password, url.PathEscape(password), url.QueryEscape(password)} {
			for _, mode := range []string{"standalone", "cluster", "sentinel"} {
				_, err := loadConfig([]string{
					"STREAMCAP_REDIS_URL=" + scheme + ":" + written + "@" + host,
					"STREAMCAP_REDIS_MODE=" + mode,
				})
				if err != nil && (strings.Contains(err.Error(), "Head") || strings.Contains(err.Error(), "Foot")) {
					t.Fatalf("%q shows in: %v", password, err)
				}
			}
		}
		parsed, err := parseRedisURL("redis://:"+url.QueryEscape(strings.ReplaceAll(password, " ", ""))+"@h", "standalone")
		if err != nil || parsed.password != strings.ReplaceAll(password, " ", "") {
			t.Fatalf("the percent-encoded %q comes out as %q, %v", password, parsed.password, err)
		}
	})
}
