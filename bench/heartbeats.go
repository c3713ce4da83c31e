package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// beatPoint is so many live streams, each of which sends a heartbeat every 20 s, evenly spread.
type beatPoint struct {
	Streams    int     `json:"streams"`
	Form       string  `json:"form"` // single requests or batches
	Offered    float64 `json:"offered_per_second"`
	Sent       float64 `json:"sent_per_second"`
	RedisCPU   float64 `json:"redis_percent_of_a_core"`
	SidecarCPU float64 `json:"sidecar_percent_of_a_core"`
	Commands   float64 `json:"redis_script_runs_per_second"` // one may be for many users
	Writes     float64 `json:"redis_writes_per_second"`      // ZADD, HSET, PEXPIRE inside the scripts
	Lost       float64 `json:"lost"`
	Unrecorded float64 `json:"unrecorded"` // of them: answered 202
	P50Without float64 `json:"acquire_p50_ms_without"`
	P99Without float64 `json:"acquire_p99_ms_without"`
	P50With    float64 `json:"acquire_p50_ms_with"`
	P99With    float64 `json:"acquire_p99_ms_with"`
	P99Ratio   float64 `json:"acquire_p99_ratio"`
	Resident   float64 `json:"sidecar_resident_bytes"`
	Highest    float64 `json:"sidecar_highest_resident_bytes"` // since the sidecar started
}

// idlePoint is what Redis and the sidecar take while no heartbeats come.
type idlePoint struct {
	RedisCPU   float64 `json:"redis_percent_of_a_core"`
	SidecarCPU float64 `json:"sidecar_percent_of_a_core"`
}

const (
	heartbeatInterval = 20 * time.Second
	batchSize         = 500
	acquireRate       = 200 // a second, while their latency is looked at
	single, batches   = "single", "batches"
)

// measureHeartbeats fills Redis step by step. The sidecar is the same all along, so that its memory can be seen to stay.
func measureHeartbeats(ctx context.Context, b *bench) error {
	w, err := newWorld(b.opts)
	if err != nil {
		return err
	}
	defer w.end()
	if err = w.startRedis(ctx); err != nil {
		return err
	}
	if err = w.startSidecar(ctx); err != nil {
		return err
	}
	steps, length, slices := []int{900, 45_000, 450_000, 900_000}, heartbeatInterval, 4
	if b.opts.short {
		steps, length, slices = []int{900, 45_000}, 5*time.Second, 1
	}
	filled := 0
	for _, streams := range steps {
		if err = w.fill(ctx, filled, streams, streamOf); err != nil {
			return err
		}
		filled = streams
		forms := []string{single, batches}
		if streams < batchSize*10 {
			forms = forms[:1]
		}
		for _, form := range forms {
			point := beatPoint{Streams: streams, Form: form, Offered: float64(streams) / heartbeatInterval.Seconds()}
			if err = w.beatPoint(ctx, &point, length, slices); err != nil {
				return fmt.Errorf("%d streams, %s: %w", streams, form, err)
			}
			b.logf("  %d streams, %s: %.0f/s, redis %.1f %%, streamcap %.1f %%, acquire p99 %.2f ms with and %.2f ms without, lost %.0f",
				streams, form, point.Sent, point.RedisCPU, point.SidecarCPU, point.P99With, point.P99Without, point.Lost)
			b.results.Heartbeats = append(b.results.Heartbeats, point)
		}
	}
	usage, err := w.watch(ctx, func() error { pause(ctx, length/2); return nil })
	b.results.Idle = &idlePoint{RedisCPU: usage.redisCPU, SidecarCPU: usage.sidecarCPU}
	return err
}

// beatPoint first looks at what heartbeats alone cost, and then at acquires with and without them, in turn.
func (w *world) beatPoint(ctx context.Context, point *beatPoint, length time.Duration, turns int) error {
	beats := w.beats(point.Streams, point.Form, point.Offered)
	before, err := w.sidecar.metrics(ctx)
	if err != nil {
		return err
	}
	sent := 0
	usage, err := w.watch(ctx, func() (err error) {
		sent, err = beats(ctx, length)
		return err
	})
	if err != nil {
		return err
	}
	point.Sent = float64(sent) / usage.seconds
	point.RedisCPU, point.SidecarCPU = usage.redisCPU, usage.sidecarCPU
	point.Commands, point.Writes = usage.scripts, usage.writes
	var without, with []time.Duration
	for range turns {
		var (
			alone, beside []time.Duration
			n             int
		)
		if alone, err = w.acquires(ctx, 3*time.Second); err != nil {
			return err
		}
		if beside, n, err = w.acquiresBeside(ctx, 3*time.Second, beats); err != nil {
			return err
		}
		without, with, sent = append(without, alone...), append(with, beside...), sent+n
	}
	slices.Sort(without)
	slices.Sort(with)
	point.P50Without, point.P99Without = quantile(without, 0.5), quantile(without, 0.99)
	point.P50With, point.P99With = quantile(with, 0.5), quantile(with, 0.99)
	point.P99Ratio = over(point.P99With, point.P99Without)
	after, err := w.sidecar.metrics(ctx)
	if err != nil {
		return err
	}
	counted := func(result string) float64 {
		name := `streamcap_heartbeat_total{result="` + result + `"}`
		return after[name] - before[name]
	}
	point.Unrecorded = counted("unrecorded")
	point.Lost = math.Max(0, float64(sent)-counted("extended"))
	if point.Resident, err = w.sidecar.memory("VmRSS"); err != nil {
		return err
	}
	point.Highest, err = w.sidecar.memory("VmHWM")
	return err
}

// beats is a function that plays the heartbeats of so many streams for a while and returns how many it sent. It goes on
// where it left off, and goes through the streams in an order in which one user's are far apart.
func (w *world) beats(streams int, form string, rate float64) func(context.Context, time.Duration) (int, error) {
	const stride = 1_000_003 // a prime that divides no number of streams
	next := 0
	return func(ctx context.Context, length time.Duration) (int, error) {
		from := next
		of := func(n int) stream { return streamOf((from + n) % streams * stride % streams) }
		loop := openLoop{
			address: w.sidecar.listen, connections: 64, rate: rate, length: length, wanted: 204,
			request: func(buffer []byte, n int) []byte { return of(n).heartbeatRequest(buffer) },
		}
		each := 1
		if form == batches {
			each = batchSize
			loop.connections, loop.rate, loop.wanted = 4, rate/batchSize, 200
			loop.request = func(buffer []byte, n int) []byte { return batchRequest(buffer, of, n*batchSize) }
		}
		seen, err := loop.run(ctx)
		next += int(rate * length.Seconds())
		return len(seen.latencies) * each, err
	}
}

// acquires takes a slot at a steady rate, releases it, and returns how long the taking took.
func (w *world) acquires(ctx context.Context, length time.Duration) ([]time.Duration, error) {
	of := func(n int) stream { return stream{user: 10_000_000 + n, request: 1<<40 + uint64(n)} } //nolint:gosec // n counts from 0
	loop := openLoop{
		address: w.sidecar.listen, connections: 8, rate: acquireRate, length: length, wanted: 204,
		request: func(buffer []byte, n int) []byte { return of(n).acquireRequest(buffer) },
		after:   func(n int) []byte { return of(n).releaseRequest(nil) },
	}
	seen, err := loop.run(ctx)
	if err == nil && seen.unwanted > 0 {
		err = fmt.Errorf("%d of %d acquires were not answered with 204", seen.unwanted, len(seen.latencies))
	}
	return seen.latencies, err
}

// acquiresBeside does so while heartbeats come.
func (w *world) acquiresBeside(ctx context.Context, length time.Duration, beats func(context.Context, time.Duration) (int, error)) ([]time.Duration, int, error) {
	type beaten struct {
		sent int
		err  error
	}
	done := make(chan beaten, 1)
	go func() {
		sent, err := beats(ctx, length)
		done <- beaten{sent, err}
	}()
	latencies, err := w.acquires(ctx, length)
	beside := <-done
	if err == nil {
		err = beside.err
	}
	return latencies, beside.sent, err
}

// usage is what Redis and the sidecar did for a while.
type usage struct {
	seconds              float64
	redisCPU, sidecarCPU float64 // percent of a core
	scripts, writes      float64 // a second
	redisMicros          float64 // of all scripts
}

// watch looks at both while something runs.
func (w *world) watch(ctx context.Context, do func() error) (usage, error) {
	type reading struct {
		redis, sidecar float64
		calls          map[string]float64
	}
	read := func() (r reading, err error) {
		if r.calls, err = w.redis.calls(ctx); err != nil {
			return r, err
		}
		if r.redis, err = w.redis.cpu(); err != nil {
			return r, err
		}
		r.sidecar, err = w.sidecar.cpu()
		return r, err
	}
	before, err := read()
	if err != nil {
		return usage{}, err
	}
	began := time.Now()
	if err = do(); err != nil {
		return usage{}, err
	}
	seconds := time.Since(began).Seconds()
	after, err := read()
	if err != nil {
		return usage{}, err
	}
	added := func(name string) float64 { return after.calls[name] - before.calls[name] }
	u := usage{
		seconds: seconds, redisCPU: 100 * (after.redis - before.redis) / seconds,
		sidecarCPU: 100 * (after.sidecar - before.sidecar) / seconds,
		scripts:    added("evalsha") / seconds, redisMicros: added("usec_evalsha"),
	}
	for _, write := range []string{"zadd", "hset", "pexpire", "zrem", "hdel", "del"} {
		u.writes += added(write) / seconds
	}
	return u, nil
}
