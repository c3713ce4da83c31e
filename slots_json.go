package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

// This file reads and writes JSON whose strings keep their bytes: a user may be invalid UTF-8, which encoding/json would
// replace. encoding/json still decides what is valid JSON (and bounds its depth); gjson takes the values out.

var errTooMany = errors.New("too many slots")

// parseBatch reads {"slots":[{"user":"u1","id":"r1"}]}. A slot that comes twice counts once; a bad one fails the whole
// batch by its number.
func parseBatch(body []byte) ([]slotstore.ID, error) {
	if !json.Valid(body) {
		return nil, errors.New("the body is not valid JSON")
	}
	slots, err := member(gjson.ParseBytes(body), "slots")
	if err != nil {
		return nil, err
	}
	if !slots.IsArray() {
		return nil, errors.New(`the body has no list "slots"; send {"slots":[{"user":"u1","id":"r1"}]}`)
	}
	var (
		ids  []slotstore.ID
		seen = make(map[slotstore.ID]bool)
		n    int
		bad  error
	)
	slots.ForEach(func(_, slot gjson.Result) bool {
		if n++; n > maxBatchSlots {
			return false
		}
		if bad != nil {
			return true
		}
		id, err := parseSlot(slot)
		switch {
		case err != nil:
			bad = fmt.Errorf("slots[%d]: %w", n-1, err)
		case !seen[id]:
			seen[id] = true
			ids = append(ids, id)
		}
		return true
	})
	if n > maxBatchSlots {
		return nil, errTooMany
	}
	return ids, bad
}

// member is an object's value under a name; one that comes twice is a mistake, as parsers differ in which they take.
func member(object gjson.Result, name string) (value gjson.Result, err error) {
	if object.IsObject() {
		object.ForEach(func(key, v gjson.Result) bool {
			if key.Str == name {
				if value.Exists() {
					err = fmt.Errorf("%q comes twice", name)
				}
				value = v
			}
			return true
		})
	}
	return value, err
}

// parseSlot reads {"user":"u1","id":"r1"}, whatever else is in it.
func parseSlot(slot gjson.Result) (slotstore.ID, error) {
	user, userErr := member(slot, "user")
	id, idErr := member(slot, "id")
	if err := errors.Join(userErr, idErr); err != nil {
		return slotstore.ID{}, err
	}
	if !slot.IsObject() || user.Exists() && user.Type != gjson.String || id.Exists() && id.Type != gjson.String {
		return slotstore.ID{}, errors.New(`not {"user":"…","id":"…"}`)
	}
	if isTorn(user.Raw) {
		return slotstore.ID{}, errTorn
	}
	return parseID(user.Str, id.Str)
}

var errTorn = errors.New(`half of a UTF-16 pair, as in "\ud800": it names no character`)

// isTorn says whether a JSON string that is valid escapes half of a pair. Readers make U+FFFD of each of them, and so one
// user of many.
func isTorn(raw string) bool {
	for {
		i := strings.IndexByte(raw, '\\')
		if i < 0 {
			return false
		}
		if raw[i+1] != 'u' {
			raw = raw[i+2:]
			continue
		}
		unit, _ := strconv.ParseUint(raw[i+2:i+6], 16, 16)
		raw = raw[i+6:]
		if !utf16.IsSurrogate(rune(unit)) {
			continue
		}
		if len(raw) < 6 || raw[:2] != `\u` {
			return true
		}
		second, err := strconv.ParseUint(raw[2:6], 16, 16)
		if err != nil || utf16.DecodeRune(rune(unit), rune(second)) == unicode.ReplacementChar {
			return true
		}
		raw = raw[6:]
	}
}

// appendBeats writes {"extended":n,"gone":[{"user":…,"id":…}]}.
func appendBeats(b []byte, beats slotstore.Beats) []byte {
	b = fmt.Appendf(b, `{"extended":%d,"gone":[`, beats.Extended)
	for i, gone := range beats.Gone {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"user":`...), gone.User)
		b = appendString(append(b, `,"id":`...), gone.Request)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

// appendString writes a JSON string and keeps every byte that JSON lets stand.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
