package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	foreignInFlight = 260
	foreignBytes    = 2 << 20
	pingEvery       = 10 * time.Millisecond
)

// foreignSets is another program on the same Redis, with 260 SETs of 2 MiB in flight on its connection all the time. Beside
// them goes a bare PING on a connection of its own: as much as Redis itself can give.
func foreignSets(ctx context.Context, s *stage) (time.Time, error) {
	var order bytes.Buffer
	fmt.Fprintf(&order, "*3\r\n$3\r\nSET\r\n$7\r\nforeign\r\n$%d\r\n", foreignBytes)
	order.Write(bytes.Repeat([]byte("x"), foreignBytes))
	order.WriteString("\r\n")

	conn, err := dial(ctx, s.redis.address)
	if err != nil {
		return time.Time{}, err
	}
	flood, stop := context.WithTimeout(ctx, s.hold)
	defer stop()
	inFlight := make(chan struct{}, foreignInFlight)
	var client sync.WaitGroup
	client.Go(func() {
		defer close(inFlight)
		for flood.Err() == nil {
			select {
			case inFlight <- struct{}{}:
			case <-flood.Done():
				return
			}
			if _, err := conn.Write(order.Bytes()); err != nil {
				return
			}
		}
	})
	client.Go(func() {
		defer conn.Close() // nothing is left to be told
		answers := bufio.NewScanner(conn)
		for range inFlight {
			if !answers.Scan() {
				return
			}
			s.foreign.Add(1)
		}
	})
	s.pings = pings(flood, s.redis.address)
	client.Wait()
	return time.Now(), nil
}

// pings sends a PING every few ms until ctx ends, never a second before the first is answered.
func pings(ctx context.Context, address string) (took []time.Duration) {
	conn, err := dial(ctx, address)
	if err != nil {
		return nil
	}
	defer conn.Close() // it is only read
	answers := bufio.NewReader(conn)
	for ; ctx.Err() == nil; pause(ctx, pingEvery) {
		sent := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return took
		}
		if _, err := answers.ReadString('\n'); err != nil {
			return took
		}
		took = append(took, time.Since(sent))
	}
	return took
}

// besidePing compares the acquires at the sidecar with the PINGs of the same time.
func besidePing(s *stage, out *result) {
	asked, _ := s.direct.taken()
	var acquires []time.Duration
	for _, a := range asked {
		if a.sent.After(s.began) && a.sent.Before(s.began.Add(s.hold)) {
			acquires = append(acquires, a.took)
		}
	}
	acquire, ping := percentile(acquires, 99), percentile(s.pings, 99)
	out.note("%d SETs of 2 MiB in %v; %d PINGs, p50 %v, longest %v; %d acquires, p50 %v", s.foreign.Load(), s.hold,
		len(s.pings), round(percentile(s.pings, 50)), round(percentile(s.pings, 100)), len(acquires), round(percentile(acquires, 50)))
	out.ratio("acquire p99 beside a bare PING's", acquire, ping, 1.5)
}

// ratio is a figure that is promised to be at most so many times another of the same run.
func (r *result) ratio(what string, got, base time.Duration, most float64) {
	r.figure(base > 0 && float64(got) <= most*float64(base), what,
		fmt.Sprintf("%v : %v = %.2f", round(got), round(base), float64(got)/float64(max(base, 1))), fmt.Sprintf("<= %.1f", most))
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
