package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// pairing is streamcap and a peer in turn: A B A B. What the machine does besides hits both of a pair alike, hence ratios
// are taken within pairs, and the median of them counts.
type pairing struct {
	Peer   string  `json:"peer"`
	Title  string  `json:"title"`
	Rate   float64 `json:"offered_per_second,omitempty"` // 0: as fast as it goes
	Ours   []load  `json:"streamcap_runs"`
	Theirs []load  `json:"peer_runs"`
	// Repeated is how many runs did not count each stream (see errUncounted), and were done again.
	Repeated int `json:"repeated"`

	OursMedian   load    `json:"streamcap_median"`
	TheirsMedian load    `json:"peer_median"`
	RateRatio    float64 `json:"throughput_ratio"` // streamcap / peer, all four
	P50Ratio     float64 `json:"p50_ratio"`
	P99Ratio     float64 `json:"p99_ratio"`
	CPURatio     float64 `json:"cpu_ratio"`
}

// measurePeers compares streamcap with each peer, closed loop and at a steady rate.
func measurePeers(ctx context.Context, b *bench) error {
	names := []string{"lua", "floor", "return", "limit_conn"}
	s, err := newStage(ctx, b.opts, names...)
	if err != nil {
		return err
	}
	defer s.end()
	before, err := s.ends(ctx)
	if err != nil {
		return err
	}
	for _, name := range append([]string{"streamcap"}, names...) { // nginx and Redis grow their buffers
		if _, err = s.closed(ctx, s.peers[name], 1); err != nil && !errors.Is(err, errUncounted) {
			return err
		}
	}
	for _, name := range names {
		var p pairing
		p, err = s.pairs(ctx, b, s.peers[name], 0, func(one *peer) (load, error) { return s.closed(ctx, one, b.opts.seconds) })
		if err != nil {
			return err
		}
		b.results.Peers = append(b.results.Peers, p)
	}
	after, err := s.ends(ctx)
	if err != nil {
		return err
	}
	told := after.since(before)
	told.Load = "acquire and release, closed loop"
	left := 0.0
	for _, p := range b.results.Peers {
		for _, run := range p.Ours {
			told.Rate, left = max(told.Rate, run.Rate), left+run.Left
		}
	}
	// Where a run cuts its last streams off, some lines come before their acquire is undone, and would hide as many lost
	// ones: but a slot whose line was lost is still held.
	told.Lost = max(told.Lost, left)
	b.results.Datagrams = append(b.results.Datagrams, told)
	for _, closed := range b.results.Peers[:2] { // the others need no second opinion
		rate := 0.5 * min(closed.OursMedian.Rate, closed.TheirsMedian.Rate)
		p, err := s.pairs(ctx, b, s.peers[closed.Peer], rate, func(one *peer) (load, error) { return s.rated(ctx, one, rate, b.opts.seconds) })
		if err != nil {
			return err
		}
		b.results.Rated = append(b.results.Rated, p)
	}
	return nil
}

func (s *stage) pairs(ctx context.Context, b *bench, theirs *peer, rate float64, run func(*peer) (load, error)) (pairing, error) {
	p := pairing{Peer: theirs.name, Title: theirs.title, Rate: rate}
	for i := range b.opts.pairs {
		for _, one := range []struct {
			peer *peer
			runs *[]load
		}{{s.peers["streamcap"], &p.Ours}, {theirs, &p.Theirs}} {
			took, err := run(one.peer)
			for errors.Is(err, errUncounted) && p.Repeated < b.opts.pairs {
				p.Repeated++
				b.logf("  again: %.160s …", err.Error())
				pause(ctx, time.Second) // its breaker closes meanwhile
				took, err = run(one.peer)
			}
			if err != nil {
				return p, err
			}
			*one.runs = append(*one.runs, took)
		}
		b.logf("  %s %d/%d: streamcap %.0f/s p99 %.1f ms, %s %.0f/s p99 %.1f ms", p.Peer, i+1, b.opts.pairs,
			p.Ours[i].Rate, p.Ours[i].P99, p.Peer, p.Theirs[i].Rate, p.Theirs[i].P99)
	}
	p.summarize()
	return p, nil
}

// summarize fills in medians and ratios.
func (p *pairing) summarize() {
	p.OursMedian, p.TheirsMedian = medianLoad(p.Ours), medianLoad(p.Theirs)
	ratio := func(of func(load) float64) float64 {
		ratios := make([]float64, len(p.Ours))
		for i := range p.Ours {
			ratios[i] = over(of(p.Ours[i]), of(p.Theirs[i]))
		}
		return median(ratios)
	}
	p.RateRatio = ratio(func(l load) float64 { return l.Rate })
	p.P50Ratio = ratio(func(l load) float64 { return l.P50 })
	p.P99Ratio = ratio(func(l load) float64 { return l.P99 })
	p.CPURatio = ratio(func(l load) float64 { return l.CPU.Total })
}

func medianLoad(runs []load) load {
	of := func(value func(load) float64) float64 {
		values := make([]float64, len(runs))
		for i, run := range runs {
			values[i] = value(run)
		}
		return median(values)
	}
	return load{
		Requests:  int(of(func(l load) float64 { return float64(l.Requests) })),
		Rate:      of(func(l load) float64 { return l.Rate }),
		P50:       of(func(l load) float64 { return l.P50 }),
		P99:       of(func(l load) float64 { return l.P99 }),
		Uncounted: most(runs, func(l load) float64 { return l.Uncounted }),
		Left:      most(runs, func(l load) float64 { return l.Left }),
		CPU: cpuPer1000s{
			Nginx:   of(func(l load) float64 { return l.CPU.Nginx }),
			Sidecar: of(func(l load) float64 { return l.CPU.Sidecar }),
			Redis:   of(func(l load) float64 { return l.CPU.Redis }),
			Total:   of(func(l load) float64 { return l.CPU.Total }),
			Backend: of(func(l load) float64 { return l.CPU.Backend }),
		},
	}
}

// most is the highest value of all, and 0 of none.
func most[T any](all []T, value func(T) float64) float64 {
	highest := 0.0
	for _, one := range all {
		highest = max(highest, value(one))
	}
	return highest
}

// median of none is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// over is a / b, and 0 where there is no b: JSON knows no infinity.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// datagrams is what became of nginx's end-of-request lines.
type datagrams struct {
	Load     string  `json:"load"`
	Rate     float64 `json:"highest_per_second"`
	Expected float64 `json:"expected"` // slots granted, or requests answered
	Seen     float64 `json:"seen"`     // released, or of a slot that was not there
	Lost     float64 `json:"lost"`
	Dropped  float64 `json:"dropped_by_kernel"` // the sidecar's socket was full
	Shed     float64 `json:"shed"`              // read, but more than wait for Redis
}

// ends are the counters that tell of datagrams.
type ends struct{ granted, released, absent, shed, dropped float64 }

func (s *stage) ends(ctx context.Context) (ends, error) {
	values, err := s.sidecar.metrics(ctx)
	if err != nil {
		return ends{}, err
	}
	dropped, err := s.sidecar.drops()
	return ends{
		granted:  values[`streamcap_acquire_total{result="granted"}`],
		released: values[`streamcap_release_total{result="released",source="nginx"}`],
		absent:   values[`streamcap_release_total{result="absent",source="nginx"}`],
		shed:     values[`streamcap_shed_total{role="release"}`],
		dropped:  dropped,
	}, err
}

// since compares grants with the releases that nginx's lines made: a slot that was granted and is gone went by its line.
func (e ends) since(before ends) datagrams {
	d := datagrams{
		Expected: e.granted - before.granted, Seen: e.released - before.released,
		Shed: e.shed - before.shed, Dropped: e.dropped - before.dropped,
	}
	d.Lost = max(0, d.Expected-d.Seen)
	return d
}

// measureDatagrams has nginx send lines as fast as it can with an auth_request that costs next to nothing: more of them
// than any cap lets through.
func measureDatagrams(ctx context.Context, b *bench) error {
	s, err := newStage(ctx, b.opts, "flood")
	if err != nil {
		return err
	}
	defer s.end()
	before, err := s.ends(ctx)
	if err != nil {
		return err
	}
	took, err := s.closed(ctx, s.peers["flood"], b.opts.seconds)
	if err != nil {
		return err
	}
	pause(ctx, 3*time.Second) // what waits for Redis is released at last
	after, err := s.ends(ctx)
	if err != nil {
		return err
	}
	told := after.since(before)
	told.Load, told.Rate = "lines alone, nothing acquired", took.Rate
	told.Expected, told.Seen = float64(took.Requests), after.absent-before.absent
	told.Lost = max(0, told.Expected-told.Seen)
	b.results.Datagrams = append(b.results.Datagrams, told)
	return nil
}
