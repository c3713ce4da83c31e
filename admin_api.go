package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"streamcap/slotstore"
)

// This file is the API of the admin listener: what the page does, with curl.

// queried is a value of the query, percent-encoded as in any, so that it can be any bytes; empty where it is not there.
func queried(r *http.Request, name string) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", errors.New("the query is not percent-encoded as it should be")
	}
	if len(query[name]) > 1 {
		return "", errors.New("the " + name + " comes twice")
	}
	return query.Get(name), nil
}

// userOf reads ?user=.
func userOf(r *http.Request) (string, error) {
	user, err := queried(r, "user")
	if err != nil {
		return "", err
	}
	return parseUser(user)
}

func (a *admin) apiSlots(w http.ResponseWriter, r *http.Request) {
	user, err := userOf(r)
	if err != nil {
		problem{http.StatusBadRequest, err.Error() + "; name one as ?user="}.write(w)
		return
	}
	// An operator who leaves is no failure of the store.
	slots, err := a.store.Slots(context.WithoutCancel(r.Context()), user)
	if err != nil {
		a.storeAway(slotstore.RoleAdmin, err).write(w)
		return
	}
	writeAnswer(w, appendSlots(nil, user, slots, time.Now(), a.cfg.SlotTTL))
}

// storeAway is the answer where the store has none.
func (a *admin) storeAway(role string, err error) problem {
	a.trouble.failed(role, err)
	reason := slotstore.ReasonOf(err)
	return problem{http.StatusServiceUnavailable, "the store can't answer (" + string(reason) + "); " + hint(reason, a.cfg.Redis)}
}

func writeAnswer(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the caller has left
}

// seen is a slot's life on our clock. The store gives durations alone.
type seen struct{ started, lastSeen, expires time.Time }

// seenAt is exact where the slot had a heartbeat. Before the first, its expiry comes from STREAMCAP_INITIAL_TTL, and the
// last sign of life is its start.
func seenAt(slot slotstore.Slot, now time.Time, slotTTL time.Duration) seen {
	s := seen{started: now.Add(-slot.Age), expires: now.Add(slot.Remaining)}
	s.lastSeen = s.expires.Add(-slotTTL)
	if s.lastSeen.After(now) {
		s.lastSeen = now
	}
	if s.lastSeen.Before(s.started) {
		s.lastSeen = s.started
	}
	return s
}

// limitOf is the limit that the newest slot was acquired with.
func limitOf(slots []slotstore.Slot) (limit int, known bool) {
	var newest time.Duration
	for _, slot := range slots {
		lost := slot.Age == 0 && slot.Limit == 0 // its details were evicted
		if !lost && (!known || slot.Age < newest) {
			limit, known, newest = slot.Limit, true, slot.Age
		}
	}
	return limit, known
}

func appendSlots(b []byte, user string, slots []slotstore.Slot, now time.Time, slotTTL time.Duration) []byte {
	b = appendUser(append(b, '{'), user)
	b = append(b, `,"limit":`...)
	if limit, known := limitOf(slots); known {
		b = strconv.AppendInt(b, int64(limit), 10)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"slots":[`...)
	for i, slot := range slots {
		if i > 0 {
			b = append(b, ',')
		}
		seen := seenAt(slot, now, slotTTL)
		b = appendString(append(b, `{"id":`...), slot.Request)
		for _, field := range []struct{ name, value string }{
			{"started", seen.started.UTC().Format(timeLayout)}, {"last_seen", seen.lastSeen.UTC().Format(timeLayout)},
			{"expires", seen.expires.UTC().Format(timeLayout)},
			{"ip", slot.IP}, {"uri", slot.URI}, {"user_agent", slot.UserAgent},
		} {
			b = appendString(append(b, `,"`+field.name+`":`...), field.value)
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

// appendUser writes "user", with her bytes. Most readers of JSON spoil bytes that are not UTF-8: for those users there is
// also "user_escaped", which fits into ?user=.
func appendUser(b []byte, user string) []byte {
	b = appendString(append(b, `"user":`...), user)
	if !utf8.ValidString(user) {
		b = appendString(append(b, `,"user_escaped":`...), url.QueryEscape(user))
	}
	return b
}

func (a *admin) apiUsers(w http.ResponseWriter, r *http.Request) {
	atLeast := 1
	least, err := queried(r, "min")
	if err != nil {
		problem{http.StatusBadRequest, err.Error()}.write(w)
		return
	}
	if least != "" {
		if atLeast, err = strconv.Atoi(least); err != nil || atLeast < 1 {
			problem{http.StatusBadRequest, "min is not a number of slots, 1 or more"}.write(w)
			return
		}
	}
	found, err := a.store.Users(context.WithoutCancel(r.Context()), atLeast)
	if err != nil {
		a.storeAway(slotstore.RoleAdmin, err).write(w)
		return
	}
	b := []byte(`{"users":[`)
	for i, user := range found.Users {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendUser(append(b, '{'), user.User)
		b = fmt.Appendf(b, `,"slots":%d}`, user.Slots)
	}
	writeAnswer(w, fmt.Appendf(b, `],"partial":%t}`, found.Partial))
}

func (a *admin) apiAudit(w http.ResponseWriter, _ *http.Request) {
	b := []byte(`{"entries":[`)
	for i, entry := range a.audit.entries() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, entry...)
	}
	writeAnswer(w, append(b, "]}"...))
}
