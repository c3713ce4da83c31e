package main

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

// This file is the page that people see.

// glanceFor is how long a page waits for the store. A store that is well answers within it, and the page comes whole,
// also to a browser without JavaScript. Where the store takes longer the page says so at once, and its script asks again
// with ?wait=, which waits as long as the API does.
//
// A look that is not waited for goes on to the role's own budget: to cut it short would count as a timeout of a store
// that is only far away, and five such pages would open the admin role's breaker.
const glanceFor = 20 * time.Millisecond

// look is what came of a look at the store.
type look[T any] struct {
	found   T
	err     error
	pending bool // not within the time
}

// glance looks at the store in a goroutine of its own, and returns how to wait for it until the time is over.
func glance[T any](a *admin, ask func() (T, error)) func(over <-chan struct{}) look[T] {
	looked := make(chan look[T], 1)
	a.looking.Go(func() {
		found, err := ask()
		looked <- look[T]{found: found, err: err}
	})
	return func(over <-chan struct{}) look[T] {
		select {
		case look := <-looked:
			return look
		case <-over:
			return look[T]{pending: true}
		}
	}
}

// The values of ?wait=: which part the script asks for alone, or both for readers without one.
const (
	waitSlots = "slots"
	waitUsers = "users"
	waitAll   = "all"
)

func (a *admin) servePage(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/") { // the page's own links need the slash; http.Redirect would make the path absolute
		w.Header().Set("Location", (&url.URL{Path: "admin/", RawQuery: r.URL.RawQuery}).String())
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	view := pageView{
		Operator: operatorOf(r), Token: a.signIn.pageToken(operatorOf(r)),
		Version: buildVersion(), Store: storeName(a.cfg), Prefix: a.cfg.KeyPrefix,
		Shadow: !a.cfg.Enforce, Local: a.cfg.OnStoreFailure == "local", AuditKept: a.cfg.AuditLog != "",
		MaxReason: maxReason, Again: "?wait=" + waitAll,
	}
	view.Trouble, view.Hints = a.unwell()
	query, queryErr := url.ParseQuery(r.URL.RawQuery)
	wait := query.Get("wait")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if wait == "" {
		ctx, cancel = context.WithTimeout(ctx, glanceFor)
		defer cancel()
	}
	detached := context.WithoutCancel(r.Context())
	var slots func(<-chan struct{}) look[[]slotstore.Slot]
	var users func(<-chan struct{}) look[slotstore.Users]
	status := http.StatusOK
	if queryErr != nil || query.Has("user") {
		user, err := userOf(r)
		view.Asked, view.User = err == nil, named(user)
		if err != nil {
			view.UserProblem, status = err.Error(), http.StatusBadRequest
		} else if view.Again = "?user=" + view.User.Escaped + "&wait=" + waitAll; wait != waitUsers {
			slots = glance(a, func() ([]slotstore.Slot, error) { return a.store.Slots(detached, user) })
		}
	}
	if wait != waitSlots {
		users = glance(a, func() (slotstore.Users, error) { return a.store.Users(detached, 1) })
	}
	if slots != nil {
		view.Slots = a.slotsView(slots(ctx.Done()))
	}
	if users != nil {
		view.Users = a.usersView(users(ctx.Done()))
	}
	view.Audit, view.Now = auditView(a.audit.entries()), instant(time.Now())

	var page bytes.Buffer
	if err := a.page.Execute(&page, view); err != nil {
		a.log.Error().Err(err).Msg("the admin page can't be made")
		problem{http.StatusInternalServerError, "the page can't be made; the log says why"}.write(w)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // the caller has left
}

// pageView is what the template shows.
type pageView struct {
	Operator, Token        string
	Version, Store, Prefix string
	Shadow, Local          bool
	Trouble                []roleTrouble
	Hints                  []string // what to do about it
	Again                  string   // the query that waits for the store
	Now                    moment
	Asked                  bool // for a user
	User                   userName
	UserProblem            string
	Slots                  slotsPart
	Users                  usersPart
	Audit                  []auditRow
	AuditKept              bool
	MaxReason              int
}

// roleTrouble is a role that is unwell: why, since when, and what it means.
type roleTrouble struct {
	Role, Breaker, Cause, Means string
	Since                       moment
}

// unwell never waits.
func (a *admin) unwell() (unwell []roleTrouble, hints []string) {
	means := map[string]string{
		slotstore.RoleAcquire: map[string]string{
			"open":   "streams start without a slot: the cap is off",
			"closed": "no stream starts",
			"local":  "this sidecar caps by itself",
		}[a.cfg.OnStoreFailure],
		slotstore.RoleHeartbeat: "heartbeats are not recorded: slots may expire under streams that run",
		slotstore.RoleRelease:   "releases are kept and tried again",
		slotstore.RoleAdmin:     "this page and the charts can't see the slots",
	}
	for _, health := range a.store.Health() {
		if degraded([]slotstore.Health{health}) {
			reason, _, _ := strings.Cut(health.LastError, ":")
			unwell = append(unwell, roleTrouble{
				Role: health.Role, Breaker: health.Breaker, Cause: health.LastError, Since: instant(health.Since),
				Means: means[health.Role],
			})
			if hint := hint(slotstore.Reason(reason), a.cfg.Redis); !slices.Contains(hints, hint) {
				hints = append(hints, hint)
			}
		}
	}
	return unwell, hints
}

// storePart is what the parts that come from the store have in common.
type storePart struct {
	Asked   bool
	Pending bool   // the store has not answered yet
	Away    string // the reason why it can't
}

func (a *admin) storePart(pending bool, err error) storePart {
	part := storePart{Asked: true, Pending: pending}
	if err != nil {
		a.trouble.failed(slotstore.RoleAdmin, err)
		part.Away = string(slotstore.ReasonOf(err))
	}
	return part
}

type slotsPart struct {
	storePart
	Limit string // empty: not known
	Full  bool   // the user is at her limit
	Bound bool   // there are more than are listed
	List  []slotRow
}

type slotRow struct {
	ID                         string
	Started, LastSeen, Expires moment
	Age, Quiet, Left           string
	IP, URI, UserAgent         string
}

func (a *admin) slotsView(look look[[]slotstore.Slot]) slotsPart {
	part := slotsPart{storePart: a.storePart(look.pending, look.err), Bound: len(look.found) >= listedMost}
	if limit, known := limitOf(look.found); known {
		part.Limit, part.Full = "limit "+strconv.Itoa(limit), limit >= 0 && len(look.found) >= limit
		if limit < 0 {
			part.Limit = "no limit"
		}
	}
	now := time.Now()
	for _, slot := range look.found {
		seen := seenAt(slot, now, a.cfg.SlotTTL)
		part.List = append(part.List, slotRow{
			ID: slot.Request, IP: legible(slot.IP), URI: legible(slot.URI), UserAgent: legible(slot.UserAgent),
			Started: instant(seen.started), LastSeen: instant(seen.lastSeen), Expires: instant(seen.expires),
			Age: short(now.Sub(seen.started)), Quiet: short(now.Sub(seen.lastSeen)), Left: short(slot.Remaining),
		})
	}
	return part
}

type usersPart struct {
	storePart
	Partial bool
	List    []userRow
}

type userRow struct {
	userName
	Slots int
}

func (a *admin) usersView(look look[slotstore.Users]) usersPart {
	part := usersPart{storePart: a.storePart(look.pending, look.err), Partial: look.found.Partial}
	for _, user := range look.found.Users {
		part.List = append(part.List, userRow{named(user.User), user.Slots})
	}
	return part
}

type auditRow struct {
	Time                           moment
	Operator, Peer, Reason, Result string
	User                           userName
	Released                       int
	IDs                            string
}

func auditView(entries [][]byte) []auditRow {
	rows := make([]auditRow, len(entries))
	for i, line := range entries {
		entry := gjson.ParseBytes(line)
		var ids []string
		for _, id := range entry.Get("ids").Array() {
			ids = append(ids, id.Str)
		}
		rows[i] = auditRow{
			Operator: entry.Get("operator").Str, Peer: entry.Get("peer").Str, Reason: legible(entry.Get("reason").Str),
			Result: entry.Get("result").Str, User: named(entry.Get("user").Str), Released: len(ids), IDs: strings.Join(ids[:min(20, len(ids))], " "),
			Time: moment{ISO: entry.Get("time").Str, Short: entry.Get("time").Str},
		}
		if at, err := time.Parse(timeLayout, entry.Get("time").Str); err == nil {
			rows[i].Time = instant(at)
		}
	}
	return rows
}
