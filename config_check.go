package main

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	keyPrefixSyntax = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)
	tokenSyntax     = regexp.MustCompile(`^[!-~]+$`)
)

// checkValues is what a value must be beyond its syntax.
func (l *loading) checkValues(cfg *config) {
	for _, s := range l.known {
		d, ok := reflect.TypeAssert[time.Duration](reflect.ValueOf(*cfg).FieldByIndex(s.index))
		if ok && d == 0 && l.isSet(s.name) && s.name != "MAX_STREAM_AGE" && !l.isWrong(s.name) {
			l.wrong(s.name, "must be at least 1ms")
		}
	}
	if !keyPrefixSyntax.MatchString(cfg.KeyPrefix) {
		l.wrong("KEY_PREFIX", "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
	}
	if l.isSet("BACKEND_TOKEN") && !tokenSyntax.MatchString(cfg.BackendToken) {
		l.wrong("BACKEND_TOKEN", "must be printable ASCII without spaces, since it travels in a header")
	}
	if l.isSet("AUDIT_LOG") {
		directory, err := os.Stat(filepath.Dir(cfg.AuditLog))
		file, absent := os.Stat(cfg.AuditLog)
		switch {
		case err != nil || !directory.IsDir():
			l.wrong("AUDIT_LOG", "is in a directory that doesn't exist or can't be entered")
		case absent == nil && file.IsDir():
			l.wrong("AUDIT_LOG", "is a directory, not a file")
		}
	}
	switch cfg.NginxLogListen.Network {
	case "tcp":
		cfg.NginxLogListen.Network = "udp"
	case "unix":
		cfg.NginxLogListen.Network = "unixgram"
	}
}

// checkTogether finds settings that are right alone and wrong together. A
// setting that is wrong alone contradicts nothing.
func (l *loading) checkTogether(cfg *config) {
	interval := cfg.HeartbeatInterval
	if cfg.SlotTTL < 3*interval && !l.isWrong("SLOT_TTL", "HEARTBEAT_INTERVAL") {
		if l.isSet("SLOT_TTL") {
			l.wrongWith("SLOT_TTL", "must be at least 3 times "+l.describe("HEARTBEAT_INTERVAL"), (3 * interval).String())
		} else {
			l.wrongWith("HEARTBEAT_INTERVAL", "must be at most a third of "+l.describe("SLOT_TTL"), (cfg.SlotTTL / 3).String())
		}
	}
	if l.isSet("INITIAL_TTL") {
		if cfg.InitialTTL < interval && !l.isWrong("INITIAL_TTL", "HEARTBEAT_INTERVAL") {
			l.wrongWith("INITIAL_TTL", "must be at least "+l.describe("HEARTBEAT_INTERVAL"), interval.String())
		}
	} else {
		cfg.InitialTTL = cfg.SlotTTL
	}

	listeners := []struct {
		name    string
		address listenAddress
	}{
		{"LISTEN", cfg.Listen},
		{"ADMIN_LISTEN", cfg.AdminListen},
		{"NGINX_LOG_LISTEN", cfg.NginxLogListen},
	}
	for i, one := range listeners {
		for _, other := range listeners[:i] {
			if overlap(one.address, other.address) && !l.isWrong(one.name, other.name) {
				name, with := one.name, other.name
				if !l.isSet(name) {
					name, with = with, name
				}
				s, _ := l.setting(name)
				l.wrongWith(name, "is the same address as "+l.describe(with), s.example())
			}
		}
	}
}

// describe names another setting and what it holds.
func (l *loading) describe(name string) string {
	if !l.isSet(name) {
		s, _ := l.setting(name)
		return envPrefix + name + ", by default " + s.tags.Get("envDefault")
	}
	return envPrefix + name + "=" + strconv.Quote(l.values[name])
}

// overlap says whether two listeners can't both be bound: the same path, or the
// same port of one protocol where the hosts are equal or one takes every
// address. Port 0 never collides.
func overlap(a, b listenAddress) bool {
	if strings.HasPrefix(a.Network, "unix") && strings.HasPrefix(b.Network, "unix") {
		return a.Address == b.Address
	}
	hostA, portA, errA := net.SplitHostPort(a.Address)
	hostB, portB, errB := net.SplitHostPort(b.Address)
	if a.Network != b.Network || errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || takesEvery(hostA) || takesEvery(hostB)
}

func takesEvery(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
