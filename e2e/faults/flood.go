package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	floodSlots   = 20_000 // a second
	floodBatch   = 500
	floodSingles = 200 // a second
	floodHeld    = 5_000
)

// heartbeatFlood measures acquires with and without a flood of heartbeats, in turns: what else the machine does meets
// both alike.
func heartbeatFlood(ctx context.Context, s *stage, out *result) error {
	s.together(8, floodHeld, func(i int) { s.direct.acquire(fmt.Sprintf("beat-%d", i), "r") })
	var quiet, flooded samples
	var slots, singles int64
	const rounds, length = 8, 2 * time.Second
	for range rounds {
		s.sample(ctx, length, &quiet)
		flood, stop := context.WithCancel(ctx)
		var flooding sync.WaitGroup
		flooding.Go(func() { slots += s.batches(flood) })
		flooding.Go(func() { singles += s.singles(flood) })
		pause(ctx, 200*time.Millisecond)
		s.sample(ctx, length-200*time.Millisecond, &flooded)
		stop()
		flooding.Wait()
		pause(ctx, 300*time.Millisecond)
	}
	seconds := rounds * length.Seconds()
	rate := float64(slots+singles) / seconds
	out.note("%.0f slots/s in batches of %d, %.0f/s one by one", float64(slots)/seconds, floodBatch, float64(singles)/seconds)
	out.note("without: %s; with: %s", &quiet, &flooded)
	out.figure(rate >= 0.9*floodSlots, "heartbeats that were recorded", fmt.Sprintf("%.0f/s", rate), fmt.Sprintf(">= %d/s", floodSlots*9/10))
	out.ratio("acquire p99 with the flood beside without, each the median of 8 rounds",
		flooded.p99(acquires), quiet.p99(acquires), flooded.p99(controls)-quiet.p99(controls), 1.5)
	return nil
}

// batches sends heartbeats in batches until ctx ends, and returns how many slots were extended.
func (s *stage) batches(ctx context.Context) int64 {
	var bodies []string
	for first := 1; first+floodBatch <= floodHeld+1; first += floodBatch {
		var slots []string
		for i := first; i < first+floodBatch; i++ {
			slots = append(slots, fmt.Sprintf(`{"user":"beat-%d","id":"r"}`, i))
		}
		bodies = append(bodies, `{"slots":[`+strings.Join(slots, ",")+`]}`)
	}
	var extended atomic.Int64
	client := newHTTPClient()
	every(ctx, time.Second*floodBatch/floodSlots, func(i int) {
		request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, "http://"+s.sidecar.listen+"/heartbeat",
			strings.NewReader(bodies[i%len(bodies)]))
		if err != nil {
			panic(err) // the URL is ours
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return
		}
		defer response.Body.Close() // it was only read
		var answer struct{ Extended int64 }
		if json.NewDecoder(response.Body).Decode(&answer) == nil {
			extended.Add(answer.Extended)
		}
		_, _ = io.Copy(io.Discard, response.Body) // it is at its end
	})
	return extended.Load()
}

// singles sends heartbeats of one slot each.
func (s *stage) singles(ctx context.Context) int64 {
	var extended atomic.Int64
	every(ctx, time.Second/floodSingles, func(i int) {
		a := s.direct.ask(http.MethodPost, "http://"+s.sidecar.listen+"/heartbeat", fmt.Sprintf("beat-%d", i%floodHeld+1), "r")
		if a.status == http.StatusNoContent {
			extended.Add(1)
		}
	})
	return extended.Load()
}

// every starts a call at each interval, whether or not the last has ended, until ctx ends; and waits for them.
func every(ctx context.Context, interval time.Duration, call func(i int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var work sync.WaitGroup
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
		case <-tick.C:
			work.Go(func() { call(i) })
		}
	}
	work.Wait()
}
