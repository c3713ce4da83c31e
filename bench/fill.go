package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"streamcap/slotstore"
)

// stream is one that runs: its user and request id follow from its number, so that a million need no memory.
type stream struct {
	user    int
	request uint64
}

// streamOf spreads streams as a service sees them: of 9 users 7 run one stream, one two and one three.
func streamOf(n int) stream {
	block, at := n/12, n%12
	user := block * 9
	switch {
	case at < 3:
	case at < 5:
		user++
	default:
		user += at - 3
	}
	return stream{user: user, request: uint64(n)} //nolint:gosec // n counts from 0
}

func (s stream) appendUser(to []byte) []byte {
	return strconv.AppendInt(append(to, "user-"...), int64(s.user), 10)
}

// appendID writes 32 hex digits, as nginx's $request_id has; they are spread like random ones.
func (s stream) appendID(to []byte) []byte {
	var id [16]byte
	state := s.request
	for half := range 2 { // splitmix64
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		for i := range 8 {
			id[half*8+i] = byte(z >> (8 * i)) //nolint:gosec // it takes it byte by byte
		}
		state ^= s.request << 17
	}
	return hex.AppendEncode(to, id[:])
}

// Usual provenance.
const (
	clientIP  = "203.0.113.217"
	streamURI = "/stream/v1/conversations/7d1c8c2e/messages"
)

// fill takes slots of the streams numbered from (inclusive) to (exclusive) in Redis, with streamcap's own store, so that it
// always fits the sidecar's scripts. They are slots of streams that have had their first heartbeat: of a stream's heartbeats
// all but the first find no attempt to forget.
func (w *world) fill(ctx context.Context, from, to int, of func(int) stream) error {
	const patience = 30 * time.Second
	store := slotstore.NewRedis(slotstore.RedisOptions{
		Mode: "standalone", Network: "tcp", Addresses: []string{w.redis.address}, Prefix: keyPrefix,
		AcquireTimeout: patience, HeartbeatTimeout: patience, ReleaseTimeout: patience, AdminTimeout: patience,
	}, slotstore.Lifetimes{Slot: slotLifetime, Initial: slotLifetime}, slotstore.Events{})
	defer store.Close() //nolint:errcheck // all answers are read
	var (
		next   atomic.Int64
		work   sync.WaitGroup
		failed = make(chan error, 1)
	)
	next.Store(int64(from))
	for range 1000 { // so many travel together
		work.Go(func() {
			for n := int(next.Add(1)) - 1; n < to && len(failed) == 0; n = int(next.Add(1)) - 1 {
				s := of(n)
				decision, err := store.Acquire(ctx, slotstore.Request{
					ID: slotstore.ID{User: string(s.appendUser(nil)), Request: string(s.appendID(nil))}, Limit: -1,
					Provenance: slotstore.Provenance{IP: clientIP, URI: streamURI, UserAgent: userAgent},
				})
				if err == nil && decision.Outcome != slotstore.Granted {
					err = fmt.Errorf("the slot of stream %d was not granted: outcome %d", n, decision.Outcome)
				}
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	work.Wait()
	select {
	case err := <-failed:
		return fmt.Errorf("filling redis: %w", err)
	default:
		return ctx.Err()
	}
}

// acquireRequest is what nginx's acquire location sends for a stream, after its first line.
func (s stream) acquireRequest(to []byte) []byte {
	to = append(to, "GET /acquire HTTP/1.1\r\nHost: streamcap\r\nX-User-Id: "...)
	to = append(s.appendUser(to), "\r\nX-Request-Id: "...)
	to = s.appendID(to)
	return append(to, "\r\nX-Stream-Limit: -1\r\nX-Original-Method: GET\r\nX-Real-IP: "+clientIP+"\r\nX-Original-URI: "+streamURI+
		"\r\nUser-Agent: "+userAgent+"\r\n\r\n"...)
}

func (s stream) releaseRequest(to []byte) []byte { return s.post(to, "/release") }

func (s stream) heartbeatRequest(to []byte) []byte { return s.post(to, "/heartbeat") }

func (s stream) post(to []byte, path string) []byte {
	to = append(append(append(to, "POST "...), path...), " HTTP/1.1\r\nHost: streamcap\r\nContent-Length: 0\r\nX-User-Id: "...)
	to = append(s.appendUser(to), "\r\nX-Request-Id: "...)
	return append(s.appendID(to), "\r\n\r\n"...)
}

// batchRequest is one heartbeat of batchSize streams.
func batchRequest(to []byte, of func(int) stream, from int) []byte {
	body := append(make([]byte, 0, 80*batchSize), `{"slots":[`...)
	for i := range batchSize {
		if i > 0 {
			body = append(body, ',')
		}
		s := of(from + i)
		body = s.appendUser(append(body, `{"user":"`...))
		body = append(s.appendID(append(body, `","id":"`...)), `"}`...)
	}
	body = append(body, `]}`...)
	to = append(to, "POST /heartbeat HTTP/1.1\r\nHost: streamcap\r\nContent-Type: application/json\r\nContent-Length: "...)
	to = append(strconv.AppendInt(to, int64(len(body)), 10), "\r\n\r\n"...)
	return append(to, body...)
}
