package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// redisURL is what a URL says.
type redisURL struct {
	tls                bool
	network            string
	addresses          []string
	db                 int
	username, password string
}

var (
	// credentialSyntax is RFC 3986's userinfo: everything else is ambiguous in
	// a URL.
	credentialSyntax = regexp.MustCompile(`^([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*$`)
	parameterSyntax  = regexp.MustCompile(`^[a-z_]{1,32}$`)
	databaseSyntax   = regexp.MustCompile(`^[0-9]{1,5}$`)
	// harmlessURL is a URL that can't hold a password, short of its query; one
	// without a scheme is shown where it is clearly a host and port.
	harmlessURL = regexp.MustCompile(`^([a-z][a-z0-9+]*://(([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]*\])(:[0-9]{0,5})?(,([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]*\])(:[0-9]{0,5})?)*)?(/[A-Za-z0-9._/-]*)?|[A-Za-z0-9._-]+:[0-9]{1,5})$`)
)

var errCredentials = errors.New("has a special character as it is in the user name or password, one of / ? # % @ [ ] or a space or the like:" +
	" percent-encode it (/ is %2F, @ is %40), or set STREAMCAP_REDIS_PASSWORD, which takes every character as it is")

// showRedisURL masks whatever could be a password, or a part of one that a
// stray character has cut off.
func showRedisURL(value string) string {
	withoutQuery, query, found := strings.Cut(value, "?")
	if strings.Contains(value, "@") || !harmlessURL.MatchString(withoutQuery) {
		return masked
	}
	if found && query != "" {
		return strconv.Quote(withoutQuery + "?***")
	}
	return strconv.Quote(value)
}

// parseRedisURL takes a URL apart by hand: since Go 1.26 net/url refuses several
// hosts, and its errors repeat the password. No error of this function holds
// any part of the user name or password.
func parseRedisURL(value, mode string) (redisURL, error) {
	scheme, rest, found := strings.Cut(value, "://")
	parsed := redisURL{network: "tcp"}
	switch strings.ToLower(scheme) {
	case "redis":
	case "rediss":
		parsed.tls = true
	case "unix":
		parsed.network = "unix"
	default:
		if !found {
			return redisURL{}, errors.New("has no scheme: it begins with redis://, rediss:// (TLS) or unix://")
		}
		return redisURL{}, errors.New("has an unknown scheme: it begins with redis:// (Valkey too), rediss:// (TLS) or unix://")
	}

	authority, tail := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, tail = rest[:end], rest[end:]
	}
	// Hosts, database and parameters hold no @: behind one of / ? # it is the
	// end of a password that had this character in it.
	if strings.Contains(tail, "@") {
		return redisURL{}, errCredentials
	}
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		if !credentialSyntax.MatchString(authority[:at]) {
			return redisURL{}, errCredentials
		}
		username, password, _ := strings.Cut(authority[:at], ":")
		parsed.username, _ = url.PathUnescape(username)
		parsed.password, _ = url.PathUnescape(password)
	}
	if strings.Contains(tail, "#") {
		return redisURL{}, errors.New("has a # in it, which means nothing here")
	}

	place, query, _ := strings.Cut(tail, "?")
	database := ""
	if parsed.network == "unix" {
		if hosts != "" {
			return redisURL{}, errors.New("has a host before the path: a socket is written with three slashes, unix:///run/redis.sock")
		}
		socket, err := url.PathUnescape(place)
		if err != nil || strings.TrimRight(socket, "/") == "" || len(socket) > maxSocketPath {
			return redisURL{}, fmt.Errorf("must name a socket by its whole path of at most %d bytes, unix:///run/redis.sock", maxSocketPath)
		}
		parsed.addresses = []string{socket}
	} else {
		port := "6379"
		if mode == "sentinel" {
			port = "26379"
		}
		var err error
		if parsed.addresses, err = parseRedisHosts(hosts, port); err != nil {
			return redisURL{}, err
		}
		database = strings.TrimPrefix(place, "/")
		if database != "" && !databaseSyntax.MatchString(database) {
			return redisURL{}, errors.New("has something other than a database number behind the hosts: write /2 for database 2; the name of a sentinel's primary goes into STREAMCAP_REDIS_SENTINEL_MASTER")
		}
	}
	database, err := parseRedisQuery(query, database)
	if err != nil {
		return redisURL{}, err
	}
	if database != "" {
		if parsed.db, err = strconv.Atoi(database); err != nil {
			return redisURL{}, errors.New("has a database that isn't a number")
		}
	}
	return parsed, nil
}

// parseRedisQuery returns the database number, as digits; the path may have
// named it already.
func parseRedisQuery(query, database string) (string, error) {
	if query == "" {
		return database, nil
	}
	for parameter := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		switch {
		case name != "db" && parameterSyntax.MatchString(name):
			return "", fmt.Errorf("has an unknown parameter, %s: db is the only one, the timeouts have settings of their own", name)
		case name != "db":
			return "", errors.New("has an unknown parameter: db is the only one")
		case database != "":
			return "", errors.New("names the database twice")
		case !databaseSyntax.MatchString(value):
			return "", errors.New("has a parameter db that isn't a number, as in ?db=2")
		}
		database = value
	}
	return database, nil
}

func parseRedisHosts(hosts, defaultPort string) ([]string, error) {
	var addresses []string
	for entry := range strings.SplitSeq(hosts, ",") {
		host, port, hasPort := strings.Cut(entry, ":")
		bracketed := strings.HasPrefix(entry, "[")
		if bracketed {
			inside, behind, closed := strings.Cut(entry[1:], "]")
			host = inside
			port, hasPort = strings.CutPrefix(behind, ":")
			if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() || !closed || behind != "" && !hasPort {
				return nil, errors.New("has brackets without an IPv6 address in them, which are written [::1]:6379")
			}
		}
		if !hasPort {
			port = defaultPort
		}
		number, err := strconv.ParseUint(port, 10, 16)
		switch {
		case !bracketed && strings.Contains(port, ":"):
			return nil, errors.New("has an IPv6 address without brackets, or too many colons: write [::1]:6379")
		case host == "":
			return nil, errors.New("has no host: name it, localhost is never meant by itself")
		case !bracketed && !hostSyntax.MatchString(host):
			return nil, errors.New("has a host that is neither a name nor an IP address")
		case err != nil || number == 0 || !onlyDigits.MatchString(port):
			return nil, errors.New("has a port that isn't 1 to 65535")
		}
		addresses = append(addresses, net.JoinHostPort(host, strconv.FormatUint(number, 10)))
	}
	return addresses, nil
}
