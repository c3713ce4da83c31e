package slotstore

import (
	"slices"
	"strings"
)

// This file names the keys in Redis.

// keys are a user's slots and details. They share a hash tag, so that a cluster keeps them on one node.
func (s *Redis) keys(user string) []string { return s.keysOf(escape(user)) }

func (s *Redis) keysOf(escaped string) []string {
	tag := s.prefix + ":{" + escaped + "}:"
	return []string{tag + "slots", tag + "details"}
}

const hexDigits = "0123456789ABCDEF"

// escape percent-encodes what could end a hash tag, form a pattern or be taken for another user.
func escape(user string) string {
	plain := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._@-", c) >= 0
	}
	if !slices.ContainsFunc([]byte(user), func(c byte) bool { return !plain(c) }) {
		return user
	}
	var escaped strings.Builder
	for i := range len(user) {
		if c := user[i]; plain(c) {
			escaped.WriteByte(c)
		} else {
			escaped.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return escaped.String()
}

// probeUser is no user's key: in a key, a percent sign is always followed by two hex digits.
const probeUser = "%probe"
