package slotstore

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// This file reads what the scripts reply.

// decision decodes what acquire.lua returns, and reports the slots that it pruned.
func (s *Redis) decision(r run) (Decision, error) {
	fields, err := list(r, 4)
	if err != nil {
		return Decision{}, err
	}
	var head [4]int64
	for i := range head {
		number, ok := fields[i].(int64)
		if !ok {
			return Decision{}, errReply
		}
		head[i] = number
	}
	s.events.expired(int(head[3]))
	decision := Decision{
		Outcome: Outcome(head[0]), Used: int(head[1]), RetryAfter: time.Duration(head[2]) * time.Millisecond,
	}
	for _, holder := range fields[4:] {
		id, ok := holder.(string)
		if !ok {
			return Decision{}, errReply
		}
		decision.Holders = append(decision.Holders, id)
	}
	return decision, nil
}

// errReply is for an answer that no script of ours gives: something else sits at that address.
var errReply = errors.New("not an answer of our script")

// list is the reply of one run as a list of at least so many elements.
func list(r run, atLeast int) ([]any, error) {
	if r.err != nil {
		return nil, r.err
	}
	elements, ok := r.reply.([]any)
	if !ok || len(elements) < atLeast {
		return nil, errReply
	}
	return elements, nil
}

// answer is what heartbeat.lua and release.lua say of one request id.
type answer int64

const (
	no         answer = 0  // not held
	yes        answer = 1  // extended, released
	other      answer = -1 // past its maximum age; past its expiry
	unanswered answer = -2
)

// decodeSlot reads one row of list.lua.
func decodeSlot(row any) (Slot, bool) {
	fields, ok := row.([]any)
	if !ok || len(fields) != 4 {
		return Slot{}, false
	}
	request, ok1 := fields[0].(string)
	remaining, ok2 := fields[1].(int64)
	age, ok3 := fields[2].(int64)
	detail, ok4 := fields[3].(string)
	slot := Slot{
		Request: request, Age: time.Duration(age) * time.Millisecond, Remaining: time.Duration(remaining) * time.Millisecond,
	}
	if parts := strings.SplitN(detail, "\n", 6); len(parts) == 6 {
		slot.Limit, _ = strconv.Atoi(parts[1]) // written by acquire.lua with %d
		slot.Provenance = Provenance{IP: parts[3], URI: parts[4], UserAgent: parts[5]}
	}
	return slot, ok1 && ok2 && ok3 && ok4
}
