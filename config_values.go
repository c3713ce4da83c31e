package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// maxDuration is a year: longer is a slip of the keyboard, and sums of a few
// durations this long stay far from overflowing.
const maxDuration = 8760 * time.Hour

// maxSocketPath is what fits into a socket address on Linux (sun_path less its
// NUL).
const maxSocketPath = 107

// listenAddress is where to listen. The zero value is off.
type listenAddress struct {
	Network string // tcp, unix, udp, unixgram; empty is off
	Address string // host:port (an empty host is every address), or a path
}

func (a listenAddress) String() string {
	if strings.HasPrefix(a.Network, "unix") {
		return "unix:" + a.Address
	}
	return a.Address
}

// limits maps a plan to its limit.
type limits map[string]int

// adminUsers maps an operator to the SHA-256 of her token.
type adminUsers map[string][sha256.Size]byte

// parsers are the syntax of each type. Their errors never hold the value: it is
// shown, or masked, in one place.
func parsers() map[reflect.Type]env.ParserFunc {
	return map[reflect.Type]env.ParserFunc{
		reflect.TypeFor[time.Duration](): func(v string) (any, error) { return parseDuration(v) },
		reflect.TypeFor[listenAddress](): func(v string) (any, error) { return parseListen(v) },
		reflect.TypeFor[os.FileMode]():   func(v string) (any, error) { return parseMode(v) },
		reflect.TypeFor[int]():           func(v string) (any, error) { return parseLimit(v) },
		reflect.TypeFor[limits]():        func(v string) (any, error) { return parseLimits(v) },
		reflect.TypeFor[adminUsers]():    func(v string) (any, error) { return parseAdminUsers(v) },
		reflect.TypeFor[bool]():          func(v string) (any, error) { return parseBool(v) },
	}
}

func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return b, nil
}

// parseDuration lets 0 pass; checkValues knows who may hold it.
func parseDuration(value string) (time.Duration, error) {
	if value == "0" {
		return 0, nil
	}
	if onlyDigits.MatchString(value) {
		return 0, fmt.Errorf("has no unit: %ss is seconds, %sms milliseconds", value, value)
	}
	d, err := time.ParseDuration(value)
	switch {
	case err != nil:
		return 0, errors.New("is not a duration: write a number and its unit (ms, s, m, h) without a space, at most 8760h")
	case d < 0:
		return 0, errors.New("must not be negative")
	case d > 0 && d < time.Millisecond:
		return 0, errors.New("must be at least 1ms")
	case d > maxDuration:
		return 0, errors.New("must be at most 8760h, which is a year")
	}
	return d, nil
}

func parseMode(value string) (os.FileMode, error) {
	mode, err := strconv.ParseUint(strings.TrimPrefix(value, "0o"), 8, 32)
	if err != nil || mode == 0 || mode > 0o777 {
		return 0, errors.New("must be the permissions of a file in octal, 0001 to 0777")
	}
	return os.FileMode(mode), nil
}

var (
	onlyDigits  = regexp.MustCompile(`^[0-9]+$`)
	limitSyntax = regexp.MustCompile(`^(-1|[0-9]{1,9})$`)
	hostSyntax  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?$`)
)

// parseLimit takes what X-Stream-Limit takes: -1, or up to nine digits.
func parseLimit(value string) (int, error) {
	if !limitSyntax.MatchString(value) {
		return 0, errors.New("must be -1 (unlimited), or 0 (nothing) to 999999999")
	}
	return strconv.Atoi(value)
}

// parseLimits splits each entry at its last colon, so that a plan may hold
// colons; only a comma can't be in one.
func parseLimits(value string) (limits, error) {
	parsed := limits{}
	var problems []string
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		colon := strings.LastIndexByte(entry, ':')
		if entry == "" {
			problems = append(problems, "an entry between the commas is empty")
			continue
		}
		if colon < 0 {
			problems = append(problems, fmt.Sprintf("entry %q has no colon and limit", entry))
			continue
		}
		plan := strings.TrimSpace(entry[:colon])
		limit, err := parseLimit(strings.TrimSpace(entry[colon+1:]))
		switch _, twice := parsed[plan]; {
		case err != nil:
			problems = append(problems, fmt.Sprintf("the limit of entry %q %v", entry, err))
		case plan == "":
			problems = append(problems, fmt.Sprintf("entry %q has no plan", entry))
		case strings.ContainsFunc(plan, isControl):
			problems = append(problems, fmt.Sprintf("entry %q has a control character", entry))
		case twice:
			problems = append(problems, fmt.Sprintf("plan %q comes twice", plan))
		default:
			parsed[plan] = limit
		}
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return parsed, nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// parseAdminUsers never names what an entry holds unless its hash is right: in
// a malformed entry any part may be the token itself.
func parseAdminUsers(value string) (adminUsers, error) {
	parsed := adminUsers{}
	var problems []string
	for i, entry := range strings.Split(value, ",") {
		name, digits, found := strings.Cut(strings.TrimSpace(entry), ":")
		hash, err := hex.DecodeString(digits)
		_, twice := parsed[name]
		var problem string
		switch {
		case !found && name == "":
			problem = "is empty"
		case !found:
			problem = "has no colon between operator and hash"
		case strings.Contains(digits, ":"):
			problem = "has two colons: an operator's name can't hold one"
		case err != nil || len(hash) != sha256.Size:
			problem = fmt.Sprintf("has a hash that isn't 64 hex digits (it has %d characters)", len(digits))
		case [sha256.Size]byte(hash) == sha256.Sum256(nil):
			problem = "has the hash of an empty token"
		case name == "" || strings.TrimSpace(name) != name || strings.ContainsFunc(name, isControl):
			problem = "has an operator's name that is empty, or has spaces around it or control characters in it"
		case twice:
			problem = fmt.Sprintf("names operator %q again", name)
		default:
			parsed[name] = [sha256.Size]byte(hash)
			continue
		}
		problems = append(problems, fmt.Sprintf("entry %d %s", i+1, problem))
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return parsed, nil
}

// parseListen takes host:port and unix:/path.
func parseListen(value string) (listenAddress, error) {
	if socket, ok := strings.CutPrefix(value, "unix:"); ok {
		switch {
		case !strings.HasPrefix(socket, "/") || strings.HasSuffix(socket, "/"):
			return listenAddress{}, errors.New("must name a socket by its whole path, as in unix:/run/streamcap/streamcap.sock")
		case len(path.Clean(socket)) > maxSocketPath:
			return listenAddress{}, fmt.Errorf("is longer than the %d bytes that the path of a socket may have", maxSocketPath)
		}
		return listenAddress{"unix", path.Clean(socket)}, nil
	}
	host, port, err := net.SplitHostPort(value)
	_, notIP := netip.ParseAddr(host)
	number, notPort := strconv.ParseUint(port, 10, 16)
	switch {
	case onlyDigits.MatchString(value):
		return listenAddress{}, fmt.Errorf("is a port alone: write 127.0.0.1:%s for this machine, or :%s for every address", value, value)
	case strings.HasPrefix(value, "/"):
		return listenAddress{}, errors.New("is a path: write unix: before it")
	case strings.Contains(value, "://"):
		return listenAddress{}, errors.New("is a URL: write host:port alone")
	case err != nil && strings.Count(value, ":") > 1:
		return listenAddress{}, errors.New("must be host:port, with brackets around an IPv6 address")
	case err != nil:
		return listenAddress{}, errors.New("has no port")
	case notPort != nil || !onlyDigits.MatchString(port):
		return listenAddress{}, errors.New("has a port that isn't 0 to 65535")
	case host == "*":
		return listenAddress{}, fmt.Errorf("has a host that isn't one: write :%d for every address", number)
	case host != "" && notIP != nil && !hostSyntax.MatchString(host):
		return listenAddress{}, errors.New("has a host that is neither a name nor an IP address")
	}
	return listenAddress{"tcp", net.JoinHostPort(host, strconv.FormatUint(number, 10))}, nil
}
