package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// redisConfig says which Redis keeps the slots and how to sign in there. It
// prints as a URL without its password.
type redisConfig struct {
	// URL is what the operator wrote; loadConfig takes it apart and empties it.
	URL string `env:"REDIS_URL" example:"redis://redis.internal:6379"`
	// Username and Password beat the URL's; the password may come from a file.
	Username     string `env:"REDIS_USERNAME"      example:"streamcap"`
	Password     string `env:"REDIS_PASSWORD"      example:"the password as it is, nothing encoded" secret:"true"`
	PasswordFile string `env:"REDIS_PASSWORD_FILE" example:"/run/secrets/redis-password"`
	// Mode is standalone, cluster or sentinel; empty after loading is the
	// embedded in-memory store, and then nothing else here is set.
	Mode string `env:"REDIS_MODE" envDefault:"standalone" oneOf:"standalone cluster sentinel"`
	// SentinelMaster is the name that the sentinels know the primary by.
	SentinelMaster string `env:"REDIS_SENTINEL_MASTER" example:"mymaster"`
	// CAFile holds the certificates that sign Redis's own, in PEM; empty trusts
	// the system's. There is no way to skip the verification.
	CAFile string `env:"REDIS_CA_FILE" example:"/etc/streamcap/redis-ca.pem"`

	Network   string      // tcp or unix
	Addresses []string    // host:port each (in sentinel mode the sentinels'), or the path of one unix socket
	DB        int         // 0 in a cluster
	TLS       *tls.Config // nil is plaintext; the dialler adds the ServerName
}

// String is the URL without its password, for the log.
func (c redisConfig) String() string {
	if c.Mode == "" {
		return "memory"
	}
	credentials := ""
	if c.Username != "" || c.Password != "" {
		credentials = url.PathEscape(c.Username) + ":***@"
	}
	scheme, db := "redis", ""
	if c.TLS != nil {
		scheme = "rediss"
	}
	if c.DB != 0 {
		db = strconv.Itoa(c.DB)
	}
	if c.Network == "unix" {
		if db != "" {
			db = "?db=" + db
		}
		return "unix://" + credentials + strings.Join(c.Addresses, ",") + db
	}
	if db != "" {
		db = "/" + db
	}
	return scheme + "://" + credentials + strings.Join(c.Addresses, ",") + db
}

// GoString and MarshalText keep the password out of %#v and of JSON.
func (c redisConfig) GoString() string { return c.String() }

// MarshalText returns String.
func (c redisConfig) MarshalText() ([]byte, error) { //nolint:unparam // it is encoding.TextMarshaler
	return []byte(c.String()), nil
}

// loadRedis completes c from its raw settings, and empties it where no URL is
// set.
func (l *loading) loadRedis(c *redisConfig) {
	if !l.isSet("REDIS_URL") {
		for _, name := range []string{"REDIS_USERNAME", "REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "REDIS_MODE", "REDIS_SENTINEL_MASTER", "REDIS_CA_FILE"} {
			needless := !l.isSet(name) || name == "REDIS_MODE" && c.Mode == "standalone"
			if !needless && !l.isWrong("REDIS_URL") {
				l.wrongWith(name, "needs STREAMCAP_REDIS_URL", "STREAMCAP_REDIS_URL=redis://redis.internal:6379")
			}
		}
		*c = redisConfig{}
		return
	}

	l.readPassword(c)
	roots := l.readCA(c.CAFile)
	parsed, err := parseRedisURL(c.URL, c.Mode)
	if err != nil {
		l.wrong("REDIS_URL", err.Error())
		return
	}
	l.checkRedis(c, parsed)

	c.URL = ""
	c.Network, c.Addresses, c.DB = parsed.network, parsed.addresses, parsed.db
	if c.Username == "" {
		c.Username = parsed.username
	}
	if c.Password == "" {
		c.Password = parsed.password
	}
	if c.Username != "" && c.Password == "" && !l.isWrong("REDIS_PASSWORD", "REDIS_PASSWORD_FILE") {
		if l.isSet("REDIS_USERNAME") {
			l.wrong("REDIS_USERNAME", "has no password beside it, so that Redis would never hear of it: set STREAMCAP_REDIS_PASSWORD too")
		} else {
			l.wrongWith("REDIS_URL", "has a user name and no password: write redis://user:password@host, or redis://:password@host where there is no user name, or set STREAMCAP_REDIS_PASSWORD", "redis://streamcap:secret@redis.internal:6379")
		}
	}
	if parsed.tls {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
}

// checkRedis finds what contradicts the mode and the URL.
func (l *loading) checkRedis(c *redisConfig, parsed redisURL) {
	if l.isSet("REDIS_CA_FILE") && !parsed.tls {
		l.wrongWith("REDIS_URL", "isn't TLS, but STREAMCAP_REDIS_CA_FILE is set: write rediss://, or unset the file", "rediss://redis.internal:6379")
	}
	if l.isWrong("REDIS_MODE") {
		return
	}
	if c.Mode == "standalone" && len(parsed.addresses) > 1 {
		l.wrong("REDIS_URL", "has several hosts, which needs STREAMCAP_REDIS_MODE=cluster or sentinel")
	}
	if c.Mode != "standalone" && parsed.network == "unix" {
		l.wrong("REDIS_URL", "is a unix socket, which STREAMCAP_REDIS_MODE="+c.Mode+" can't use")
	}
	if c.Mode == "cluster" && parsed.db != 0 {
		l.wrong("REDIS_URL", "has a database number, and a cluster has database 0 alone")
	}
	if c.Mode == "sentinel" && !l.isSet("REDIS_SENTINEL_MASTER") && !l.isWrong("REDIS_SENTINEL_MASTER") {
		l.wrongWith("REDIS_MODE", "needs STREAMCAP_REDIS_SENTINEL_MASTER, the name that the sentinels know the primary by", "STREAMCAP_REDIS_SENTINEL_MASTER=mymaster")
	}
	if c.Mode != "sentinel" && l.isSet("REDIS_SENTINEL_MASTER") {
		l.wrongWith("REDIS_SENTINEL_MASTER", "needs STREAMCAP_REDIS_MODE=sentinel, and it is "+c.Mode, "STREAMCAP_REDIS_MODE=sentinel")
	}
}

// readPassword reads the password from its file. One line end is the editor's;
// everything else belongs to the password.
func (l *loading) readPassword(c *redisConfig) {
	if c.PasswordFile == "" {
		return
	}
	if c.Password != "" {
		l.wrong("REDIS_PASSWORD_FILE", "is set together with STREAMCAP_REDIS_PASSWORD: unset one of them")
		return
	}
	content, err := os.ReadFile(c.PasswordFile)
	c.Password = strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if err != nil {
		l.wrong("REDIS_PASSWORD_FILE", "can't be read: "+reason(err))
	} else if c.Password == "" {
		l.wrong("REDIS_PASSWORD_FILE", "is an empty file")
	}
}

func (l *loading) readCA(file string) *x509.CertPool {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	roots := x509.NewCertPool()
	if err != nil {
		l.wrong("REDIS_CA_FILE", "can't be read: "+reason(err))
	} else if !roots.AppendCertsFromPEM(content) {
		l.wrong("REDIS_CA_FILE", "holds no certificate in PEM")
	}
	return roots
}

// reason is the cause of an error of the file system without the path, which
// the mistake shows already.
func reason(err error) string {
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		return failed.Err.Error()
	}
	return err.Error()
}
