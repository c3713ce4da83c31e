package main

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// service is what the listeners share.
type service struct {
	cfg       config
	log       zerolog.Logger
	store     slotstore.Store
	local     *slotstore.Memory // nil: off
	unsettled *unsettled
	trouble   *trouble
	metrics   *metrics
	looking   sync.WaitGroup // looks at the store that an answer did not wait for
}

// newService opens the store. It waits for nobody.
func newService(cfg config, log zerolog.Logger) *service {
	metrics := newMetrics()
	s := &service{
		cfg: cfg, log: log, metrics: metrics, trouble: newTrouble(log, cfg.Redis),
		unsettled: &unsettled{slotTTL: cfg.SlotTTL, metrics: metrics, log: log},
	}
	s.store = openStore(cfg, metrics.events(slotstore.Events{
		Abandoned: s.unsettled.keepUndo, Circuit: s.trouble.circuit, SelfTest: s.trouble.selfTest, Eviction: s.trouble.eviction,
	}))
	s.unsettled.store = s.store
	metrics.watch(s.store, s.unsettled.depth)
	if cfg.OnStoreFailure == "local" {
		s.local = slotstore.NewMemory(lifetimes(cfg), slotstore.Events{}, localUsers)
		s.store = localSlots{s.store, s.local, s.unsettled.keepTwins}
	}
	return s
}

// sampleEach is how often a sidecar looks for the newest sample.
const sampleEach = 2 * time.Second

// sample shows the newest sample of all sidecars until ctx ends.
func (s *service) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEach)
	defer tick.Stop()
	for {
		sample, ok, err := s.store.Sample(ctx)
		if err != nil && ctx.Err() == nil {
			s.trouble.failed(slotstore.RoleAdmin, err)
		}
		if ok {
			s.metrics.setSample(sample)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// publicHandler routes by hand: a router answers 405 to a method that it does not know, and /acquire takes any.
func (s *service) publicHandler() http.Handler {
	acquire := &authRequest{
		store: s.store, local: s.local, unsettled: s.unsettled, trouble: s.trouble, metrics: s.metrics,
		limits: s.cfg.Limits, defaultLimit: s.cfg.DefaultLimit,
		shadow: !s.cfg.Enforce, failClosed: s.cfg.OnStoreFailure == "closed",
		denyMissingID: s.cfg.OnMissingID == "deny", denyStatus: s.cfg.DenyStatus,
		heartbeat: strconv.FormatFloat(s.cfg.HeartbeatInterval.Seconds(), 'f', -1, 64),
		log:       s.log, warnings: throttle{every: time.Minute}, denials: throttle{every: time.Second},
	}
	heartbeat := &heartbeats{
		store: s.store, caller: slotCaller{methods: []string{"POST", "PUT"}, token: s.cfg.BackendToken},
		trouble: s.trouble, metrics: s.metrics, log: s.log, gone: throttle{every: time.Minute},
	}
	release := &releases{
		store: s.store, unsettled: s.unsettled, trouble: s.trouble, metrics: s.metrics,
		caller: slotCaller{methods: []string{"POST", "PUT", "DELETE"}, token: s.cfg.BackendToken},
	}
	health := &health{store: s.store, storeName: storeName(s.cfg)}
	return boundBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch strings.TrimRight(r.URL.Path, "/") {
		case "/acquire":
			acquire.ServeHTTP(w, r)
		case "/heartbeat":
			heartbeat.ServeHTTP(w, r)
		case "/release":
			release.ServeHTTP(w, r)
		case "/healthz":
			health.ServeHTTP(w, r)
		default:
			problem{http.StatusNotFound, "there is /acquire, /heartbeat, /release and /healthz"}.write(w)
		}
	}))
}

// boundBody has no connection wait for a body that does not come: net/http reads one that nobody wants before it answers
// on a connection that lives on. Who wants one has [bodyTimeout] for it.
func boundBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // net/http's own connections have one
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// adminHandler serves people and Prometheus. Without operators there is nothing to sign in to.
func (s *service) adminHandler() http.Handler {
	router := chi.NewRouter()
	router.Use(boundBody)
	nothing := func(w http.ResponseWriter, _ *http.Request) {
		problem{http.StatusNotFound, "there is /metrics and /healthz, and with STREAMCAP_ADMIN_USERS also /admin/"}.write(w)
	}
	router.NotFound(nothing)
	router.MethodNotAllowed(nothing) // of methods that chi doesn't know; all others are the handlers' affair
	router.Handle("/metrics", s.metrics.handler())
	router.Handle("/healthz", &health{store: s.store, storeName: storeName(s.cfg)})
	if len(s.cfg.AdminUsers) > 0 {
		router.Route("/admin", newAdmin(s).routes)
	}
	return router
}
