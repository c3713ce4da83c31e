package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is a steady stream of stream starts through nginx: open loop, so that a stall delays nobody's next click. Most
// users stay under their limit of 3; the others hold their only slot with a stream that goes on, and try a second.
type load struct {
	urls   []string // of a stream, in turns: each of another nginx
	client *http.Client
	rate   int
	ttl    time.Duration
	under  []*user
	over   []*holder
	// length is how long a stream is, and when its client leaves it: never, if that is longer.
	length func() (length, leaves time.Duration)

	next atomic.Int64 // user
	turn atomic.Int64 // of the urls
	work sync.WaitGroup

	mu     sync.Mutex
	shots  []shot
	away   []span    // when the sidecar was not there to take a release
	forgot time.Time // when the store last lost what it knew
}

// shot is one start.
type shot struct {
	kind   kind
	sent   time.Time
	first  time.Duration // to the first byte
	ended  time.Time     // when it was over; zero for streams that go on
	status int           // 0: no answer
	err    error
	slot   string // what the backend was told of it
	reason string
	user   string
	body   string // of a refusal
	wrong  bool   // refused although under, or let through although over
	// waiting: her earlier releases may still wait in the sockets of a sidecar that was stopped.
	waiting bool
}

func (s shot) decided() time.Time { return s.sent.Add(s.first) }

type kind int

const (
	underLimit kind = iota // it must start
	overLimit              // her only slot is held: it must be refused, unless the store is away
	holding                // it takes the only slot, to hold it
)

const (
	shortStream = 200 * time.Millisecond
	usersUnder  = 40
	usersOver   = 16
	patience    = 10 * time.Second
)

func newLoad(w *world) *load {
	l := &load{
		urls: []string{streams(w)}, rate: w.opts.rate, ttl: w.ttl, client: newHTTPClient(),
		length: func() (length, leaves time.Duration) { return shortStream, time.Hour },
	}
	for i := range usersUnder {
		l.under = append(l.under, &user{name: fmt.Sprintf("paid-%d", i), limit: 3})
	}
	for i := range usersOver {
		l.over = append(l.over, &holder{user: &user{name: fmt.Sprintf("free-%d", i), limit: 1}})
	}
	return l
}

// streams is where a world's streams start.
func streams(w *world) string { return "http://" + w.nginx + "/stream/" }

// newHTTPClient is one whose connections are its own.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: patience}).DialContext,
		MaxIdleConnsPerHost: 1024, DisableCompression: true, IdleConnTimeout: 30 * time.Second,
	}}
}

// run goes on until ctx ends, and returns when the last stream has ended.
func (l *load) run(ctx context.Context) {
	for _, h := range l.over {
		l.work.Go(func() { l.hold(ctx, h) })
	}
	tick := time.NewTicker(time.Second / time.Duration(l.rate))
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-ctx.Done():
		case <-tick.C:
			if n%3 == 2 {
				l.work.Go(l.startOver)
			} else {
				l.work.Go(l.startUnder)
			}
		}
	}
	l.work.Wait()
}

// startUnder starts a stream of a user who has one to spare.
func (l *load) startUnder() {
	away := l.spans()
	for range l.under {
		u := l.under[int(l.next.Add(1))%len(l.under)]
		ok, waiting := u.begin(away, l.ttl)
		if !ok {
			continue
		}
		s := l.short(u, underLimit)
		s.waiting = waiting
		u.end(s.status == http.StatusTooManyRequests)
		s.wrong = s.status == http.StatusTooManyRequests
		l.record(s)
		return
	}
}

// startOver starts a second stream of a user who holds her only slot.
func (l *load) startOver() {
	for range l.over {
		h := l.over[int(l.next.Add(1))%len(l.over)]
		held := h.held()
		if held == nil || !l.remembered(held.since) {
			continue
		}
		h.guests.Add(1)
		s := l.short(h.user, overLimit)
		time.AfterFunc(grace, func() { h.guests.Add(-1) })
		if h.held() != held || !l.remembered(held.since) {
			return // she lost it meanwhile: this says nothing
		}
		s.wrong = s.status == http.StatusOK
		l.record(s)
		return
	}
}

// short runs one stream to its end, or until its client leaves.
func (l *load) short(u *user, k kind) shot {
	length, leaves := l.length()
	ctx, cancel := context.WithTimeout(context.Background(), patience+length)
	defer cancel()
	s, body := l.start(ctx, u, k, "?for="+length.String())
	if body != nil {
		left := time.AfterFunc(leaves, cancel)
		defer left.Stop()
		if _, err := io.Copy(io.Discard, body); err != nil && s.err == nil && left.Stop() {
			s.status, s.err = 0, fmt.Errorf("broke off: %w", err)
		}
		_ = body.Close() // it is at its end, or left in the middle
	}
	s.ended = time.Now()
	return s
}

// start sends a start and reads up to the stream's first event. The body is nil where there is no stream.
func (l *load) start(ctx context.Context, u *user, k kind, query string) (s shot, stream io.ReadCloser) {
	s = shot{kind: k, sent: time.Now(), user: u.name}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.urls[int(l.turn.Add(1))%len(l.urls)]+u.name+query, http.NoBody)
	if err != nil {
		panic(err) // the URL is ours
	}
	request.Header.Set("Authorization", "Bearer "+u.name)
	response, err := l.client.Do(request)
	s.first = time.Since(s.sent)
	if err != nil {
		s.err = err
		return s, nil
	}
	s.status = response.StatusCode
	if s.status != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1024)) // it is shown to people alone
		_ = response.Body.Close()                                  // likewise
		s.body = string(body)
		return s, nil
	}
	lines := bufio.NewReader(response.Body)
	line, err := lines.ReadString('\n')
	var event struct{ Slot, Reason string }
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &event)
	}
	if err != nil {
		s.err = fmt.Errorf("the stream's first event: %w", err)
	}
	s.slot, s.reason = event.Slot, event.Reason
	return s, struct {
		io.Reader
		io.Closer
	}{lines, response.Body}
}

func (l *load) record(s shot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shots = append(l.shots, s)
}

// forget says that the store has just lost what it knew.
func (l *load) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgot = time.Now()
}

func (l *load) remembered(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return since.After(l.forgot)
}

// leave says that the sidecar takes no releases from now on: they are lost, or they wait. back says that it does again.
func (l *load) leave(lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = append(l.away, span{from: time.Now(), lost: lost})
}

func (l *load) back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away[len(l.away)-1].to = time.Now()
}

func (l *load) spans() []span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]span(nil), l.away...)
}

// taken is what was recorded until now.
func (l *load) taken() []shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]shot(nil), l.shots...)
}
