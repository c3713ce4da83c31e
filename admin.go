package main

import (
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

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
