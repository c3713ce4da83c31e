package main

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

//go:embed admin
var adminFiles embed.FS

// admin is what operators see and do: the page, its API, and the trail of what they did.
type admin struct {
	cfg     config
	store   slotstore.Store
	signIn  *signIn
	audit   *auditLog
	trouble *trouble
	metrics *metrics
	log     zerolog.Logger
	page    *template.Template
	looking *sync.WaitGroup // looks at the store that a page did not wait for
}

func newAdmin(s *service) *admin {
	return &admin{
		cfg: s.cfg, store: s.store, trouble: s.trouble, metrics: s.metrics, log: s.log, looking: &s.looking,
		signIn: &signIn{operators: s.cfg.AdminUsers, log: s.log, lines: throttle{every: time.Second, most: time.Minute}},
		audit:  openAudit(s.cfg.AuditLog, s.log),
		page:   template.Must(template.ParseFS(adminFiles, "admin/page.html")),
	}
}

// routes are all below /admin/. Nothing in them, nor in an answer, names a host or an absolute path, so that they work
// behind nginx under another host and below another path.
func (a *admin) routes(router chi.Router) {
	router.Use(protect, a.signIn.guard)
	router.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		problem{http.StatusNotFound, "there is /admin/ and /admin/api/slots, release, users and audit"}.write(w)
	})
	router.HandleFunc("/", only("GET", a.servePage))
	for name, mediaType := range map[string]string{"admin.css": "text/css", "admin.js": "text/javascript", "icon.svg": "image/svg+xml"} {
		router.HandleFunc("/"+name, only("GET", serveFile("admin/"+name, mediaType)))
	}
	router.HandleFunc("/api/slots", only("GET", a.apiSlots))
	router.HandleFunc("/api/users", only("GET", a.apiUsers))
	router.HandleFunc("/api/audit", only("GET", a.apiAudit))
	router.HandleFunc("/api/release", only("POST", a.apiRelease))
}

// only answers other methods with 405. GET goes with HEAD.
func only(method string, next http.HandlerFunc) http.HandlerFunc {
	allow := []string{method}
	if method == http.MethodGet {
		allow = append(allow, http.MethodHead)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(allow, r.Method) {
			next(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		problem{http.StatusMethodNotAllowed, r.Method + " is not allowed here; use " + strings.Join(allow, " or ")}.write(w)
	}
}

// protect sets the headers that keep other sites, and what users are called, out of the page.
func protect(next http.Handler) http.Handler {
	headers := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer", // the address holds a user
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		next.ServeHTTP(w, r)
	})
}

func serveFile(path, mediaType string) http.HandlerFunc {
	content, err := fs.ReadFile(adminFiles, path)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType+"; charset=utf-8")
		_, _ = w.Write(content) // the caller has left
	}
}

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
	wait := r.URL.Query().Get("wait")
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
	if r.URL.Query().Has("user") {
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
