package main

import (
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// This file is how names and times look to people.

// userName is a user as people read her, and as she goes into ?user=. Raw is for the template, which escapes it.
type userName struct {
	Raw, Shown, Escaped string
	Typed               string // as a text field holds her; empty where it can't
}

func named(user string) userName {
	name := userName{Raw: user, Shown: legible(user), Escaped: url.QueryEscape(user)}
	if name.Shown == user {
		name.Typed = user
	}
	return name
}

// legible shows what can't be seen: two users must not look the same to whoever is about to release one. Bytes that are
// not UTF-8, and characters that are invisible or turn the text around, are spelt out.
func legible(s string) string {
	var shown strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			shown.WriteString(`\x` + strconv.FormatUint(uint64(s[0])|0x100, 16)[1:])
		case !unicode.IsPrint(r):
			shown.WriteString(`\u{` + strconv.FormatInt(int64(r), 16) + `}`)
		default:
			shown.WriteRune(r)
		}
		s = s[size:]
	}
	return shown.String()
}

// moment is a time for people, and for the script that counts.
type moment struct{ ISO, Short string }

func instant(t time.Time) moment {
	return moment{ISO: t.UTC().Format(timeLayout), Short: t.UTC().Format("2006-01-02 15:04:05")}
}

// short is a duration as the script writes it too.
func short(d time.Duration) string {
	seconds := int(d / time.Second)
	minutes, hours := seconds/60, seconds/3600
	switch {
	case hours >= 48:
		return strconv.Itoa(hours/24) + " d " + strconv.Itoa(hours%24) + " h"
	case hours > 0:
		return strconv.Itoa(hours) + " h " + strconv.Itoa(minutes%60) + " min"
	case minutes > 0:
		return strconv.Itoa(minutes) + " min " + strconv.Itoa(seconds%60) + " s"
	}
	return strconv.Itoa(seconds) + " s"
}
