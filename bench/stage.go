package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stage is where the peers stand side by side, all started, one at a time under load: who idles costs nothing.
type stage struct {
	*world

	backend *process
	peers   map[string]*peer
}

// peer is one way to cap streams, with an nginx of its own.
type peer struct {
	variant

	address string
	nginx   *process
	sidecar *process // nil: it has none
	counts  bool     // in Redis
}

// load is what one run, or the median of several, took.
type load struct {
	Requests int     `json:"requests"`
	Rate     float64 `json:"requests_per_second"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	// Uncounted started without a slot, although the peer counts: it failed open. Left are users who still held a slot 3 s
	// after the last stream had ended: its release was lost.
	Uncounted float64     `json:"uncounted"`
	Left      float64     `json:"left"`
	CPU       cpuPer1000s `json:"cpu_seconds_per_1000_requests"`
}

// cpuPer1000s are seconds of CPU for each thousand requests. The backend is the same for all, and not in the total.
type cpuPer1000s struct {
	Nginx   float64 `json:"nginx"`
	Sidecar float64 `json:"sidecar"`
	Redis   float64 `json:"redis"`
	Total   float64 `json:"total"`
	Backend float64 `json:"backend"`
}

const (
	streamUsers       = 100_000
	streamConnections = 64
	// userAgent is as long as browsers make it: provenance costs something.
	userAgent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
)

// newStage starts streamcap and these peers.
func newStage(ctx context.Context, opts options, names ...string) (*stage, error) {
	w, err := newWorld(opts)
	if err != nil {
		return nil, err
	}
	s := &stage{world: w, peers: map[string]*peer{}}
	if err := s.build(ctx, names); err != nil {
		w.end()
		return nil, err
	}
	return s, nil
}

func (s *stage) build(ctx context.Context, names []string) error {
	if err := s.startRedis(ctx); err != nil {
		return err
	}
	if err := s.startSidecar(ctx); err != nil {
		return err
	}
	backend, backendAddress, err := s.startBackend(ctx)
	if err != nil {
		return err
	}
	s.backend = backend
	for _, v := range s.variants() {
		if v.name != "streamcap" && !slices.Contains(names, v.name) {
			continue
		}
		p := &peer{variant: v}
		at := places{sidecar: s.sidecar.listen, nginxLog: s.sidecar.nginxLog, backend: backendAddress}
		switch v.name {
		case "streamcap":
			p.sidecar, p.counts = s.sidecar.process, true
		case "lua":
			p.counts = true
		case "floor":
			at.sidecar = freeAddress(ctx)
			if p.sidecar, err = s.launch(ctx, at.sidecar, "floor", nil, "/proc/self/exe", "-floor", at.sidecar); err != nil {
				return err
			}
		}
		if p.nginx, p.address, err = s.startNginx(ctx, v, at); err != nil {
			return err
		}
		s.peers[v.name] = p
	}
	return nil
}

// closed keeps all connections busy for so long: the highest rate, and what latency is at it.
func (s *stage) closed(ctx context.Context, p *peer, seconds int) (load, error) {
	return s.measured(ctx, p, func() (load, error) { return wrk(ctx, s.opts, p.address, seconds) })
}

// rated sends a steady rate for so long: what latency is while nobody is saturated.
func (s *stage) rated(ctx context.Context, p *peer, rate float64, seconds int) (load, error) {
	loop := openLoop{
		address: p.address, connections: streamConnections, rate: rate, length: time.Duration(seconds) * time.Second, wanted: 200,
		request: func(buffer []byte, _ int) []byte {
			buffer = append(buffer, "GET "+streamURI+" HTTP/1.1\r\nHost: bench\r\nUser-Agent: "+userAgent+"\r\nAuthorization: u-"...)
			buffer = strconv.AppendInt(buffer, rand.Int64N(streamUsers)+1, 10) //nolint:gosec // a user
			return append(buffer, "\r\n\r\n"...)
		},
	}
	return s.measured(ctx, p, func() (load, error) {
		seen, err := loop.run(ctx)
		if err == nil && seen.unwanted > 0 {
			err = fmt.Errorf("%d of %d answers were not 200", seen.unwanted, len(seen.latencies))
		}
		return load{
			Requests: len(seen.latencies), Rate: float64(len(seen.latencies)) / seen.seconds,
			P50: quantile(seen.latencies, 0.5), P99: quantile(seen.latencies, 0.99),
		}, err
	})
}

// measured runs a load, waits until its releases have arrived, and adds what it cost. It fails where a peer that counts
// let one in a hundred streams start without a slot, or end without its release: such a run would be quick for the wrong reason.
func (s *stage) measured(ctx context.Context, p *peer, run func() (load, error)) (load, error) {
	callsBefore, err := s.redis.calls(ctx)
	if err != nil {
		return load{}, err
	}
	before, err := s.cpu(p)
	if err != nil {
		return load{}, err
	}
	result, err := run()
	if err != nil {
		return load{}, fmt.Errorf("%s: %w: %s", p.name, err, p.nginx.output())
	}
	left, err := s.redis.leftovers(ctx)
	if err != nil {
		return load{}, err
	}
	after, err := s.cpu(p)
	if err != nil {
		return load{}, err
	}
	calls, err := s.redis.calls(ctx)
	if err != nil {
		return load{}, err
	}
	if p.counts {
		result.Left = float64(left)
		result.Uncounted = max(0, float64(result.Requests)-(calls["zadd"]-callsBefore["zadd"]))
		if max(result.Uncounted, result.Left) > float64(result.Requests)/100 {
			return load{}, fmt.Errorf("%w: %s: of %d streams %.0f were not counted and %.0f not released: %s%s", errUncounted, p.name,
				result.Requests, result.Uncounted, result.Left, p.nginx.output(), s.sidecar.output())
		}
	}
	result.CPU = after.minus(before).per(float64(result.Requests) / 1000)
	return result, nil
}

// errUncounted is for a run in which the machine, or the peer, was too slow to count.
var errUncounted = errors.New("not all streams were counted")

func (s *stage) cpu(p *peer) (c cpuPer1000s, err error) {
	for _, one := range []struct {
		into *float64
		of   *process
	}{{&c.Nginx, p.nginx}, {&c.Sidecar, p.sidecar}, {&c.Redis, s.redis.process}, {&c.Backend, s.backend}} {
		if *one.into, err = one.of.cpu(); err != nil {
			return c, err
		}
	}
	if !p.counts {
		c.Redis = 0 // it only idles
	}
	return c, nil
}

func (c cpuPer1000s) minus(before cpuPer1000s) cpuPer1000s {
	return cpuPer1000s{
		Nginx: c.Nginx - before.Nginx, Sidecar: c.Sidecar - before.Sidecar, Redis: c.Redis - before.Redis,
		Backend: c.Backend - before.Backend,
	}
}

func (c cpuPer1000s) per(thousands float64) cpuPer1000s {
	if thousands <= 0 {
		return cpuPer1000s{}
	}
	nginx, sidecar, redis := c.Nginx/thousands, c.Sidecar/thousands, c.Redis/thousands
	return cpuPer1000s{Nginx: nginx, Sidecar: sidecar, Redis: redis, Total: nginx + sidecar + redis, Backend: c.Backend / thousands}
}

// wrk is the closed loop. Its one thread sends more than nginx can take with an auth_request, and leaves it the other core.
func wrk(ctx context.Context, opts options, address string, seconds int) (load, error) {
	output, err := exec.CommandContext(ctx, "wrk", "-t1", fmt.Sprintf("-c%d", streamConnections), fmt.Sprintf("-d%ds", seconds), //nolint:gosec // bench names it
		"--latency", "--timeout", "10s", "-s", opts.path("bench", "wrk.lua"), "http://"+address, "--",
		strconv.Itoa(streamUsers), strconv.Itoa(rand.IntN(1<<30)), userAgent).Output() //nolint:gosec // a seed
	if err != nil {
		return load{}, fmt.Errorf("wrk: %w: %s", err, output)
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	var said struct {
		Requests, Broken int
		Seconds          float64
		P50ms            float64 `json:"p50_ms"`
		P99ms            float64 `json:"p99_ms"`
		NotOK            int     `json:"not_200"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &said); err != nil {
		return load{}, fmt.Errorf("wrk: %w: %s", err, output)
	}
	if said.Requests == 0 {
		return load{}, errors.New("wrk: not one request was answered")
	}
	if said.NotOK > 0 || said.Broken > 0 {
		return load{}, fmt.Errorf("wrk: of %d answers %d were not 200, %d broke", said.Requests, said.NotOK, said.Broken)
	}
	return load{Requests: said.Requests, Rate: float64(said.Requests) / said.Seconds, P50: said.P50ms, P99: said.P99ms}, nil
}
