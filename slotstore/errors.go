package slotstore

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Reason says in one word why a store could not answer.
type Reason string

// The reasons.
const (
	Timeout     Reason = "timeout"      // the budget, or the socket's, ran out
	Unavailable Reason = "unavailable"  // refused, reset, unresolvable, loading, failing over
	BreakerOpen Reason = "breaker_open" // not asked: the role's breaker is open
	Overload    Reason = "overload"     // not asked: our queue was full, or Redis is at its client limit
	OOM         Reason = "oom"          // Redis is full and may not forget
	ReadOnly    Reason = "readonly"     // a replica, or a primary that refuses writes
	NoPerm      Reason = "noperm"       // wrong password, or an ACL or a server without a command we need
	WrongType   Reason = "wrongtype"    // somebody else's data under this user's key
	Moved       Reason = "moved"        // a cluster node, asked in standalone mode
	Internal    Reason = "internal"     // all else
)

// Reasons are all of them.
//
//nolint:gochecknoglobals // a constant list
var Reasons = []Reason{Timeout, Unavailable, BreakerOpen, Overload, OOM, ReadOnly, NoPerm, WrongType, Moved, Internal}

// Error is a store's failure to answer. It says nothing about the slot.
type Error struct {
	Op     string // acquire, heartbeat, release, undo, list
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return "slotstore: " + e.Op + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf is the reason of a store's error: [Internal] for an error that no store made, empty for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Internal
}

var (
	errTimeout  = errors.New("no answer within the budget")
	errOverload = errors.New("not sent within the budget: every connection is busy")
	errBreaker  = errors.New("not asked: the breaker is open")
	errQueue    = errors.New("not sent: the queue is full")
	errClosed   = errors.New("the store is closed")

	errHandshake  = errors.New("TLS handshake")
	errSpeaksTLS  = errors.New("the port speaks TLS, and this connection is plaintext")
	errNoMaster   = errors.New("the sentinels know no primary called")
	errDistrusted = errors.New("not used again: the server may be another by now")
)

// failure wraps the error of op once, at the package's edge.
func failure(op string, err error) error {
	return &Error{Op: op, Reason: classify(err), Err: err}
}

// replyCode finds the code of an error reply that a script has wrapped: up to Redis 6 it comes as
// "ERR Error running script (call to f_…): @user_script:9: -OOM command not allowed …".
var replyCode = regexp.MustCompile(`(?:^|[ -])(OOM|READONLY|NOREPLICAS|MISCONF|WRONGTYPE|NOPERM|NOAUTH|WRONGPASS|MOVED|ASK|CROSSSLOT|LOADING|MASTERDOWN|CLUSTERDOWN|BUSY|TRYAGAIN)\b`)

// classify is the one place that knows errors by their kind, and Redis's error replies, which have nothing else, by
// their text.
func classify(err error) Reason {
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return classifyReply(reply.Error())
	}
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errHandshake), errors.Is(err, errSpeaksTLS), errors.Is(err, errNoMaster):
		return Unavailable
	case errors.Is(err, errBreaker):
		return BreakerOpen
	case errors.Is(err, errOverload), errors.Is(err, errQueue), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return Overload
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), isTimeout(err):
		return Timeout
	case isNet, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, redis.ErrClosed), errors.Is(err, errClosed):
		return Unavailable
	}
	return Internal
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

func classifyReply(text string) Reason {
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "unknown command"), strings.Contains(lower, "unknown redis command"),
		strings.Contains(lower, "the user executing the script can't"), strings.Contains(lower, "unauthenticated"):
		return NoPerm
	case strings.Contains(lower, "max number of clients reached"):
		return Overload
	}
	switch codeOf(text) {
	case "":
		return Internal
	case "OOM":
		return OOM
	case "READONLY", "NOREPLICAS", "MISCONF":
		return ReadOnly
	case "WRONGTYPE":
		return WrongType
	case "NOPERM", "NOAUTH", "WRONGPASS":
		return NoPerm
	case "MOVED", "ASK", "CROSSSLOT":
		return Moved
	}
	return Unavailable
}

// codeOf is the code that an error reply begins with, or that a script has wrapped; empty for one that means nothing to us.
func codeOf(text string) string {
	if code := replyCode.FindStringSubmatch(text); code != nil {
		return code[1]
	}
	return ""
}

// isElsewhere knows the errors that a Redis answers, or does not answer, where another one has taken over.
func isElsewhere(err error) bool {
	if !isReply(err) {
		return err != nil && classify(err) != Overload
	}
	switch codeOf(err.Error()) {
	case "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN":
		return true
	}
	return false
}

// isRedirection knows what a cluster's node says of a key that another one keeps.
func isRedirection(err error) bool {
	return err != nil && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK"))
}

// isReply says whether a server said it, as opposed to the network.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}
