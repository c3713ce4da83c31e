package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// samples are rounds of acquires at the sidecar, and of control requests to nginx and bare PINGs to Redis of the same
// time.
type samples struct{ rounds []map[sampled][]time.Duration }

type sampled string

const (
	acquires sampled = "acquires"
	controls sampled = "control"
	pinged   sampled = "PING"
)

// all are those of every round.
func (s *samples) all(what sampled) (took []time.Duration) {
	for _, round := range s.rounds {
		took = append(took, round[what]...)
	}
	return took
}

// p99 is the median of the rounds' 99th percentiles: a stall of the machine is in one of them.
func (s *samples) p99(what sampled) time.Duration {
	var each []time.Duration
	for _, round := range s.rounds {
		each = append(each, percentile(round[what], 99))
	}
	return percentile(each, 50)
}

func (s *samples) String() string {
	var text strings.Builder
	for _, what := range []sampled{acquires, controls, pinged} {
		took := s.all(what)
		fmt.Fprintf(&text, "%d %s", len(took), what)
		for _, p := range []int{50, 90, 99, 100} {
			fmt.Fprintf(&text, " p%d %v", p, round(percentile(took, p)))
		}
		text.WriteString("; ")
	}
	return text.String()
}

// sample adds a round: it asks every 4 ms, open loop, for so long.
func (s *stage) sample(ctx context.Context, length time.Duration, into *samples) {
	sampling, stop := context.WithTimeout(ctx, length)
	defer stop()
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	var mu sync.Mutex
	took := make(map[sampled][]time.Duration)
	add := func(what sampled, d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		took[what] = append(took[what], d)
	}
	var work sync.WaitGroup
	work.Go(func() {
		pings(sampling, s.redis.address, func(_ time.Time, took time.Duration) { add(pinged, took) })
	})
	for sampling.Err() == nil {
		select {
		case <-sampling.Done():
		case <-tick.C:
			work.Go(func() {
				user := fmt.Sprintf("sample-%d", s.direct.count.Add(1))
				add(acquires, s.direct.acquire(user, "r").took)
				s.direct.ask(http.MethodPost, "http://"+s.sidecar.listen+"/release", user, "r")
				add(controls, s.direct.ask(http.MethodGet, "http://"+s.nginx+"/", "", "").took)
			})
		}
	}
	work.Wait()
	into.rounds = append(into.rounds, took)
}

// ratio is a figure that is promised to be at most so many times another of the same run. Where it is not, what control
// requests took at that time, which ask no store, is the machine's: it is shown, and taken off.
func (r *result) ratio(what string, got, base, machine time.Duration, most float64) {
	value := fmt.Sprintf("%v : %v = %.2f", round(got), round(base), float64(got)/float64(max(base, 1)))
	within := base > 0 && float64(got) <= most*float64(base)
	if !within && machine > 0 {
		value += fmt.Sprintf("; without the %v that control requests took: %.2f", round(machine), float64(got-machine)/float64(max(base, 1)))
		within = base > 0 && float64(got-machine) <= most*float64(base)
	}
	r.figure(within, what, value, fmt.Sprintf("<= %.1f", most))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// percentile sorts a copy.
func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}
