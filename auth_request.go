package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// authRequest answers nginx's auth_request: may this stream start? Whatever happens, it answers 204, 401 or 403 (or
// denyStatus), because auth_request turns everything else into a 500 for the client.
type authRequest struct {
	store         slotstore.Store
	local         *slotstore.Memory // decides where the store can't; nil: off
	unsettled     *unsettled
	trouble       *trouble
	metrics       *metrics
	limits        map[string]int // by plan
	defaultLimit  int
	shadow        bool // count and report, never deny
	failClosed    bool // deny while the store can't answer
	denyMissingID bool
	denyStatus    int
	heartbeat     string // X-Stream-Heartbeat-Interval
	log           zerolog.Logger
	warnings      throttle // one a minute for each kind of bad input
	denials       throttle // one a second for each user
}

// verdict is the answer to one acquire.
type verdict struct {
	status     int
	slot       string // X-Stream-Slot
	reason     string // X-Stream-Reason; empty for a slot that is simply held
	limit      int
	used       int              // -1: the store was not asked or did not answer
	retryAfter time.Duration    // 0: none
	result     string           // that it counts as
	notDecided slotstore.Reason // why the store did not decide a stream that starts, or that the local cap decided
}

func (a *authRequest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	limit := a.defaultLimit
	defer func() {
		if p := recover(); p != nil {
			a.log.Error().Interface("panic", p).Msg("acquire panicked; the stream starts")
			a.answer(w, a.failed(limit, slotstore.Internal))
		}
	}()
	limit = a.limit(r.Header)
	a.answer(w, a.decide(r, limit))
}

// count records a verdict.
func (a *authRequest) count(v verdict) {
	a.metrics.acquires.add(v.result, 1)
	if v.result == resultUncounted {
		a.metrics.uncounted.add(v.reason, 1)
	}
	if v.notDecided != "" {
		a.metrics.failOpen[slotstore.RoleAcquire].add(string(v.notDecided), 1)
	}
	if v.used >= 0 {
		a.metrics.busiest.saw(time.Now(), v.used)
	}
}

// decide understands the request and asks the store. Its order is the contract's: preflight, user, request id, store.
func (a *authRequest) decide(r *http.Request, limit int) verdict {
	if method := one(r.Header, headerOriginalMethod); method == http.MethodOptions || method == http.MethodHead {
		return verdict{status: http.StatusNoContent, slot: "uncounted", reason: "preflight", limit: limit, used: -1, result: resultUncounted}
	}
	user, err := parseUser(one(r.Header, headerUser))
	if err != nil {
		return a.missing(limit, "no_user", "proxy_set_header X-User-Id $stream_user;", err)
	}
	id, err := parseRequestID(one(r.Header, headerRequestID))
	if err != nil {
		return a.missing(limit, "no_request_id", "proxy_set_header X-Request-Id $request_id;", err)
	}
	return a.acquire(r, slotstore.Request{
		ID:         slotstore.ID{User: user, Request: id},
		Limit:      limit,
		Attempt:    strconv.FormatUint(rand.Uint64(), 36), //nolint:gosec // it tells attempts apart and guards nothing
		Provenance: provenance(r.Header),
	})
}

// missing is the answer to an acquire that names no slot. It never becomes a slot that users share.
func (a *authRequest) missing(limit int, reason, directive string, err error) verdict {
	a.warnings.say(reason, func(count int) {
		a.log.Warn().Err(err).Int("count", count).Str("reason", reason).Str("directive", directive).
			Msg("acquire without a usable " + strings.TrimPrefix(reason, "no_") + "; is the directive in nginx's acquire location?")
	})
	v := verdict{status: http.StatusNoContent, slot: "uncounted", reason: reason, limit: limit, used: -1, result: resultUncounted}
	if a.denyMissingID {
		v = a.denied(v, http.StatusUnauthorized, reason, resultRefused)
	}
	return v
}

// acquire asks the store. The call goes on when nginx hangs up, so that a hung store is seen behind an impatient nginx;
// what it took for a client that left is undone.
func (a *authRequest) acquire(r *http.Request, req slotstore.Request) verdict {
	ctx := context.WithoutCancel(r.Context())
	v := a.ask(ctx, req)
	if !clientLeft(r) {
		return v
	}
	if v.result == resultGranted {
		if v.reason == reasonLocal {
			_, _ = a.local.Undo(ctx, req.ID, req.Attempt) // memory never fails
		} else {
			a.unsettled.undoNow(ctx, req.ID, req.Attempt)
		}
		v = a.failed(req.Limit, slotstore.Internal) // only a client that closed half its connection reads this
	}
	v.result, v.notDecided = resultCancelled, ""
	return v
}

// ask has the store decide, or the local cap where the store can't and where it holds the slot already.
func (a *authRequest) ask(ctx context.Context, req slotstore.Request) verdict {
	if a.local != nil && a.local.Holds(req.ID) {
		return a.askLocal(ctx, req, slotstore.Unavailable)
	}
	decision, err := a.store.Acquire(ctx, req)
	if err == nil {
		return a.decided(req, decision)
	}
	a.trouble.failed(slotstore.RoleAcquire, err)
	if a.local != nil {
		return a.askLocal(ctx, req, slotstore.ReasonOf(err))
	}
	return a.failed(req.Limit, slotstore.ReasonOf(err))
}

func (a *authRequest) askLocal(ctx context.Context, req slotstore.Request, cause slotstore.Reason) verdict {
	decision, err := a.local.Acquire(ctx, req)
	if err != nil {
		return a.failed(req.Limit, slotstore.ReasonOf(err))
	}
	v := a.decided(req, decision)
	if v.notDecided = cause; v.slot == "held" {
		v.reason = reasonLocal
	}
	return v
}

const reasonLocal = "local"

// decided is the answer to what a store decided.
func (a *authRequest) decided(req slotstore.Request, decision slotstore.Decision) verdict {
	v := verdict{status: http.StatusNoContent, slot: "held", limit: req.Limit, used: decision.Used, result: resultGranted}
	switch decision.Outcome {
	case slotstore.Granted:
	case slotstore.Renewed:
		v.result = resultRenewed
	case slotstore.Denied:
		v = a.denied(v, a.denyStatus, "stream_limit_reached", resultDenied)
		if req.Limit != 0 && !a.shadow {
			v.retryAfter = decision.RetryAfter
		}
		a.sayDenied(req.User, decision, req.Limit)
	}
	return v
}

func (a *authRequest) sayDenied(user string, decision slotstore.Decision, limit int) {
	a.denials.say(user, func(count int) {
		a.log.Info().Str("event", "denied").Str("user", user).Int("used", decision.Used).Int("limit", limit).
			Strs("ids", decision.Holders).Int("count", count).Bool("shadow", a.shadow).Msg("stream limit reached")
	})
}

// failed is the answer where the store gave none.
func (a *authRequest) failed(limit int, reason slotstore.Reason) verdict {
	v := verdict{
		status: http.StatusNoContent, slot: "failopen", reason: string(reason), limit: limit, used: -1,
		result: resultFailOpen, notDecided: reason,
	}
	if a.failClosed {
		v = a.denied(v, a.denyStatus, "store_unavailable", resultFailClosed)
		if !a.shadow {
			v.retryAfter, v.notDecided = time.Second, ""
		}
	}
	return v
}

// denied turns a verdict into a denial, unless shadow mode only counts what would have been one.
func (a *authRequest) denied(v verdict, status int, reason, result string) verdict {
	v.status, v.slot, v.reason, v.result = status, "denied", reason, result
	if a.shadow {
		v.status, v.slot, v.reason, v.result = http.StatusNoContent, "uncounted", "shadow", resultUncounted
	}
	return v
}

func (a *authRequest) answer(w http.ResponseWriter, v verdict) {
	a.count(v)
	header := w.Header()
	values := make([]string, 0, 6) // of all headers: each has one
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	set("Cache-Control", "no-store")
	set(headerSlot, v.slot)
	set(headerLimit, strconv.Itoa(v.limit))
	if v.reason != "" {
		set(headerReason, v.reason)
	}
	if v.used >= 0 {
		set(headerUsed, strconv.Itoa(v.used))
	}
	if v.slot == "held" {
		set(headerHeartbeatInterval, a.heartbeat)
	}
	if v.retryAfter > 0 {
		set("Retry-After", strconv.FormatInt(int64((v.retryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(v.status)
}

// limit is the trusted limit if there is one, else the plan's, else the default.
func (a *authRequest) limit(header http.Header) int {
	trusted, plan := one(header, headerLimit), one(header, headerPlan)
	if limit, ok := parseTrustedLimit(trusted); ok {
		return limit
	}
	limit, known := a.limits[plan]
	if badLimit, badPlan := came(header, headerLimit), came(header, headerPlan) && !known; badLimit || badPlan {
		a.warnings.say("limit", func(count int) {
			a.log.Warn().Str("limit", trusted).Str("plan", plan).Int("count", count).
				Msg("acquire with a bad X-Stream-Limit or an unknown X-Plan; it counts as missing")
		})
	}
	if known {
		return limit
	}
	return a.defaultLimit
}

// came says whether a header came with anything in it.
func came(header http.Header, name string) bool {
	values := header[name]
	return len(values) > 1 || len(values) == 1 && values[0] != ""
}

// parseTrustedLimit takes -1 or up to 9 digits.
func parseTrustedLimit(value string) (limit int, ok bool) {
	if value == "-1" {
		return slotsUnlimited, true
	}
	if value == "" || len(value) > 9 || strings.Trim(value, "0123456789") != "" {
		return 0, false
	}
	limit, err := strconv.Atoi(value)
	return limit, err == nil
}

const slotsUnlimited = -1

// provenance is what support is shown of a stream; a URI comes without its query, which may hold secrets.
func provenance(header http.Header) slotstore.Provenance {
	uri, _, _ := strings.Cut(one(header, headerOriginalURI), "?")
	return slotstore.Provenance{
		IP:        cut(one(header, headerRealIP), 64),
		URI:       cut(uri, 512),
		UserAgent: cut(one(header, headerUserAgent), 256),
	}
}

// cut copies what it shortens, so that a slot does not keep a whole request alive.
func cut(s string, bytes int) string {
	if len(s) <= bytes {
		return s
	}
	return strings.Clone(s[:bytes])
}
