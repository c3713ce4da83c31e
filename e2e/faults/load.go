package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
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
	url    string // of a short stream
	client *http.Client
	rate   int
	ttl    time.Duration
	under  []*user
	over   []*holder

	next atomic.Int64
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
		url: "http://" + w.nginx + "/stream/", rate: w.opts.rate, ttl: w.ttl,
		client: newHTTPClient(),
	}
	for i := range usersUnder {
		l.under = append(l.under, &user{name: fmt.Sprintf("paid-%d", i), limit: 3})
	}
	for i := range usersOver {
		l.over = append(l.over, &holder{user: &user{name: fmt.Sprintf("free-%d", i), limit: 1}})
	}
	return l
}

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
		u.end(s.status != http.StatusOK)
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
		s := l.short(h.user, overLimit)
		if h.held() != held || !l.remembered(held.since) {
			return // she lost it meanwhile: this says nothing
		}
		s.wrong = s.status == http.StatusOK
		l.record(s)
		return
	}
}

// short runs one short stream to its end.
func (l *load) short(u *user, k kind) shot {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, body := l.start(ctx, u, k, "?for="+shortStream.String())
	if body != nil {
		if _, err := io.Copy(io.Discard, body); err != nil && s.err == nil {
			s.status, s.err = 0, fmt.Errorf("broke off: %w", err)
		}
		_ = body.Close() // it is at its end
	}
	return s
}

// start sends a start and reads up to the stream's first event. The body is nil where there is no stream.
func (l *load) start(ctx context.Context, u *user, k kind, query string) (s shot, stream io.ReadCloser) {
	s = shot{kind: k, sent: time.Now(), user: u.name}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+u.name+query, http.NoBody)
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

// holder is a user over her limit: she keeps her only slot with one long stream.
type holder struct {
	*user

	hold atomic.Pointer[hold]
}

// hold is the stream that keeps it. since is when it was granted.
type hold struct{ since time.Time }

func (h *holder) held() *hold { return h.hold.Load() }

// hold keeps the user's slot taken until ctx ends: it starts again what the store has forgotten or never counted.
func (l *load) hold(ctx context.Context, h *holder) {
	for ctx.Err() == nil {
		if !l.holdOnce(ctx, h) {
			pause(ctx, 150*time.Millisecond)
		}
	}
}

// holdOnce says whether the slot was held for a while.
func (l *load) holdOnce(ctx context.Context, h *holder) bool {
	ok, waiting := h.begin(l.spans(), l.ttl)
	if !ok {
		return false
	}
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	s, body := l.start(streaming, h.user, holding, "?for=1h")
	defer func() { h.end(s.status != http.StatusOK) }()
	if ctx.Err() == nil {
		s.wrong, s.waiting = s.status == http.StatusTooManyRequests, waiting
		l.record(s)
	}
	if body == nil {
		return false
	}
	defer body.Close() // we leave it in the middle
	if s.slot != "held" {
		return false
	}
	h.hold.Store(&hold{since: s.sent})
	defer h.hold.Store(nil)
	l.work.Go(func() { // leaves what the store has forgotten
		for streaming.Err() == nil && l.remembered(s.sent) {
			pause(streaming, 20*time.Millisecond)
		}
		cancel()
	})
	_, err := io.Copy(io.Discard, body)
	if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		l.record(shot{kind: holding, sent: time.Now(), user: h.name, err: fmt.Errorf("a stream that should go on ended: %w", err)})
	}
	return true
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

// holders is how many users hold their slot now.
func (l *load) holders() int {
	n := 0
	for _, h := range l.over {
		if held := h.held(); held != nil && l.remembered(held.since) {
			n++
		}
	}
	return n
}

// taken is what was recorded until now.
func (l *load) taken() []shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]shot(nil), l.shots...)
}
