package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
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
	for flood.Err() == nil {
		s.sample(flood, 2*time.Second, &s.beside)
	}
	client.Wait()
	return time.Now(), nil
}

// pings sends a PING every few ms until ctx ends, never a second before the first is answered.
func pings(ctx context.Context, address string, answered func(sent time.Time, took time.Duration)) {
	conn, err := dial(ctx, address)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })() // nobody waits for the last
	defer conn.Close()                                                          // it is only read
	answers := bufio.NewReader(conn)
	for ; ctx.Err() == nil; pause(ctx, pingEvery) {
		sent := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return
		}
		if _, err := answers.ReadString('\n'); err != nil {
			return
		}
		answered(sent, time.Since(sent))
	}
}

// besidePing compares the acquires at the sidecar with the PINGs of the same time.
func besidePing(s *stage, out *result) {
	out.note("%d SETs of 2 MiB in %v; %s", s.foreign.Load(), s.hold, &s.beside)
	out.ratio("acquire p99 beside a bare PING's, each the median of its rounds",
		s.beside.p99(acquires), s.beside.p99(pinged), s.beside.p99(controls), 1.5)
}
