package main

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"streamcap/slotstore"
)

// metrics is every metric of the service, all there with 0 from the first scrape. Labels are fixed words, never a user,
// an id or a path. A scrape never waits for Redis.
type metrics struct {
	registry *prometheus.Registry

	acquires    words
	uncounted   words
	failOpen    map[string]words // by role
	heartbeats  words
	releases    map[string]words // by source
	expired     prometheus.Counter
	shed        words
	seconds     map[string]map[string]prometheus.Observer // by role and op
	nginxLogBad prometheus.Counter
	busiest     busiest

	mu     sync.Mutex
	sample slotstore.Sample
}

// words are the counters of a label, by its value; all values are known.
type words map[string]prometheus.Counter

// The values of labels.
const (
	resultGranted    = "granted"
	resultRenewed    = "renewed"
	resultDenied     = "denied"     // by the limit
	resultRefused    = "refused"    // 401
	resultFailClosed = "failclosed" // the store could not answer, and the stream did not start
	resultUncounted  = "uncounted"
	resultFailOpen   = "failopen"
	resultCancelled  = "cancelled" // the client left

	resultExtended   = "extended"
	resultGone       = "gone"
	resultReleased   = "released"
	resultAbsent     = "absent"
	resultUnrecorded = "unrecorded"

	sourceBackend   = "backend"
	sourceNginx     = "nginx"
	sourceAdmin     = "admin"
	sourceAbandoned = "abandoned" // the undoing of acquires
)

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	m := &metrics{
		registry: registry,
		acquires: counters(registry, "streamcap_acquire_total", "Acquires by result; the sum is the requests.", "result",
			resultGranted, resultRenewed, resultDenied, resultRefused, resultFailClosed, resultUncounted, resultFailOpen, resultCancelled),
		uncounted: counters(registry, "streamcap_uncounted_total", "Streams that started without a slot, by reason.", "reason",
			"preflight", "no_user", "no_request_id", "shadow"),
		failOpen:   make(map[string]words),
		heartbeats: counters(registry, "streamcap_heartbeat_total", "Heartbeats by result, in slots.", "result", resultExtended, resultGone, resultUnrecorded),
		releases:   make(map[string]words),
		expired: counter(registry, "streamcap_expired_total",
			"Slots that a prune removed: their streams ended without a release."),
		shed:    counters(registry, "streamcap_shed_total", "Work that found a full queue, by role.", "role", slotstore.Roles...),
		seconds: make(map[string]map[string]prometheus.Observer),
		nginxLogBad: counter(registry, "streamcap_nginx_log_bad_total",
			"End-of-request lines that could not be read."),
	}
	failOpen := vec(registry, "streamcap_failopen_total", "Acquires that the store did not decide, and heartbeats that it did not record.", "role", "reason")
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "streamcap_store_seconds", Help: "How long callers waited for Redis.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
	}, []string{"role", "op"})
	registry.MustRegister(seconds)
	for _, role := range slotstore.Roles {
		m.failOpen[role] = make(words)
		for _, reason := range slotstore.Reasons {
			m.failOpen[role][string(reason)] = failOpen.WithLabelValues(role, string(reason))
		}
		m.seconds[role] = make(map[string]prometheus.Observer)
	}
	for op, role := range map[string]string{
		"acquire": slotstore.RoleAcquire, "heartbeat": slotstore.RoleHeartbeat, "release": slotstore.RoleRelease,
		"list": slotstore.RoleAdmin, "scan": slotstore.RoleAdmin,
	} {
		m.seconds[role][op] = seconds.WithLabelValues(role, op)
	}
	releases := vec(registry, "streamcap_release_total", "Releases by who asked and by result, in slots.", "source", "result")
	for _, source := range []string{sourceBackend, sourceNginx, sourceAdmin, sourceAbandoned} {
		m.releases[source] = make(words)
		for _, result := range []string{resultReleased, resultAbsent, resultUnrecorded} {
			m.releases[source][result] = releases.WithLabelValues(source, result)
		}
	}
	registry.MustRegister(newSampled(m.newestSample), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "streamcap_user_slots_max", Help: "Most slots seen at one user over the last full minute.",
	}, func() float64 { return float64(m.busiest.lastMinute(time.Now())) }))
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "streamcap_build_info", Help: "What runs; always 1."}, []string{"version", "goversion"})
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build.WithLabelValues(buildVersion(), runtime.Version()).Set(1)
	return m
}

func counter(registry *prometheus.Registry, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	registry.MustRegister(c)
	return c
}

func vec(registry *prometheus.Registry, name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	registry.MustRegister(v)
	return v
}

func counters(registry *prometheus.Registry, name, help, label string, values ...string) words {
	v, all := vec(registry, name, help, label), make(words)
	for _, value := range values {
		all[value] = v.WithLabelValues(value)
	}
	return all
}

// add counts n under a word that is known; one that isn't would be a mistake of ours, and counts nowhere.
func (w words) add(value string, n int) {
	if c, ok := w[value]; ok && n > 0 {
		c.Add(float64(n))
	}
}

// sampled collects what the newest sample of all sidecars shows: a scrape sees one sample, never parts of two.
type sampled struct {
	newest              func() slotstore.Sample
	live, oldest, users *prometheus.Desc
}

func newSampled(newest func() slotstore.Sample) sampled {
	const how = ", sampled once a minute; aggregate with max."
	return sampled{
		newest: newest,
		live:   prometheus.NewDesc("streamcap_slots_live", "Live slots of all sidecars together"+how, nil, nil),
		oldest: prometheus.NewDesc("streamcap_oldest_slot_seconds", "Age of the oldest live slot"+how, nil, nil),
		users:  prometheus.NewDesc("streamcap_users", "Users by how many live slots they hold"+how, []string{"slots"}, nil),
	}
}

func (s sampled) Describe(descs chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, descs) }

func (s sampled) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	sample := s.newest()
	gauge(s.live, float64(sample.Slots))
	gauge(s.oldest, sample.Oldest.Seconds())
	for i, slots := range []string{"1", "2", "3", "4+"} {
		gauge(s.users, float64(sample.Users[i]), slots)
	}
}

// watch declares what is read at each scrape: the store's roles and the work that is kept.
func (m *metrics) watch(store slotstore.Store, kept func() int) {
	for i, role := range slotstore.Roles {
		gauge := func(name, help string, value func(slotstore.Health) float64) {
			m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: name, Help: help, ConstLabels: prometheus.Labels{"role": role},
			}, func() float64 { return value(store.Health()[i]) }))
		}
		gauge("streamcap_breaker_open", "1 while the role's breaker is not closed.", func(h slotstore.Health) float64 { return truth(h.Breaker != "closed") })
		gauge("streamcap_queue_depth", "Work that waits for the store, kept releases included.", func(h slotstore.Health) float64 {
			if role == slotstore.RoleRelease {
				return float64(h.Waiting + kept())
			}
			return float64(h.Waiting)
		})
	}
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "streamcap_degraded", Help: "1 while a role is unwell.",
	}, func() float64 { return truth(degraded(store.Health())) }))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// events are the store's, counted.
func (m *metrics) events(e slotstore.Events) slotstore.Events {
	e.Expired = func(slots int) { m.expired.Add(float64(slots)) }
	e.Called = func(role, op string, took time.Duration) {
		if observer := m.seconds[role][op]; observer != nil {
			observer.Observe(took.Seconds())
		}
	}
	e.Shed = func(role string) { m.shed.add(role, 1) }
	return e
}

func (m *metrics) beats(beats slotstore.Beats) {
	m.heartbeats.add(resultExtended, beats.Extended)
	m.heartbeats.add(resultGone, len(beats.Gone))
	m.heartbeats.add(resultUnrecorded, beats.Unrecorded)
}

// released counts what the store answered; the rest counts once, where it is kept.
func (m *metrics) released(source string, releases slotstore.Releases) {
	m.releases[source].add(resultReleased, len(releases.Released))
	m.releases[source].add(resultAbsent, releases.Absent)
}

func (m *metrics) newestSample() slotstore.Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sample
}

func (m *metrics) setSample(sample slotstore.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sample = sample
}

// busiest is the most slots that were seen at one user, minute by minute.
type busiest struct {
	mu           sync.Mutex
	minute       int64 // since 1970
	this, before int
}

func (b *busiest) turn(now time.Time) {
	switch minute := now.Unix() / 60; minute {
	case b.minute:
	case b.minute + 1:
		b.minute, b.this, b.before = minute, 0, b.this
	default:
		b.minute, b.this, b.before = minute, 0, 0
	}
}

func (b *busiest) saw(now time.Time, used int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn(now)
	b.this = max(b.this, used)
}

func (b *busiest) lastMinute(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn(now)
	return b.before
}
