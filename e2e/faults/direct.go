package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// direct asks the sidecar itself, without nginx: pairs of acquires of users who come once, the second over the limit of
// 1. Beside them go control requests that ask no store: what those take, the machine takes.
type direct struct {
	sidecar string // address
	nginx   string // address
	client  *http.Client
	every   time.Duration
	count   atomic.Int64

	nginxAlone bool // the sidecar is not there to be asked for controls

	work sync.WaitGroup

	mu      sync.Mutex
	asked   []ask
	control []ask
}

// ask is one request.
type ask struct {
	sent   time.Time
	took   time.Duration
	status int // 0: no answer
	slot   string
	reason string
	second bool // of a pair: over the limit, if the first is held
	wrong  verdict
}

func (a ask) decided() time.Time { return a.sent.Add(a.took) }

// verdict is what an answer was by the truth.
type verdict int

const (
	right      verdict = iota
	letThrough         // although over
	refused            // although under
)

func newDirect(w *world) *direct {
	return &direct{sidecar: w.sidecar.listen, nginx: w.nginx, client: newHTTPClient(), every: 50 * time.Millisecond}
}

// run goes on until ctx ends.
func (d *direct) run(ctx context.Context) {
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			d.work.Go(d.pair)
			d.work.Go(d.controls)
		}
	}
	d.work.Wait()
}

// pair takes a slot, tries for a second, and gives back what it holds, or may hold.
func (d *direct) pair() {
	user := fmt.Sprintf("direct-%d", d.count.Add(1))
	first := d.acquire(user, "first")
	second := d.acquire(user, "second")
	second.second = true
	if first.status == http.StatusForbidden {
		first.wrong = refused
	}
	if first.status == http.StatusNoContent && second.status == http.StatusNoContent {
		second.wrong = letThrough
	}
	d.mu.Lock()
	d.asked = append(d.asked, first, second)
	d.mu.Unlock()
	for id, a := range map[string]ask{"first": first, "second": second} {
		if a.slot != "failopen" { // that one took nothing, or what it took is undone
			d.ask(http.MethodPost, "http://"+d.sidecar+"/release", user, id)
		}
	}
}

// acquire asks for a slot under a limit of 1.
func (d *direct) acquire(user, id string) ask {
	return d.ask(http.MethodGet, "http://"+d.sidecar+"/acquire", user, id)
}

func (d *direct) ask(method, url, user, id string) ask {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		panic(err) // the URL is ours
	}
	if user != "" {
		request.Header.Set("X-User-Id", user)
		request.Header.Set("X-Request-Id", id)
		request.Header.Set("X-Stream-Limit", "1")
	}
	a := ask{sent: time.Now()}
	response, err := d.client.Do(request)
	a.took = time.Since(a.sent)
	if err != nil {
		return a
	}
	_, _ = io.Copy(io.Discard, response.Body) // it is short
	_ = response.Body.Close()                 // likewise
	a.status, a.slot, a.reason = response.StatusCode, response.Header.Get("X-Stream-Slot"), response.Header.Get("X-Stream-Reason")
	return a
}

// controls ask nginx for its own 404 and the sidecar for its health.
func (d *direct) controls() {
	urls := []string{"http://" + d.nginx + "/", "http://" + d.sidecar + "/healthz"}
	if d.nginxAlone {
		urls = urls[:1]
	}
	for _, url := range urls {
		if a := d.ask(http.MethodGet, url, "", ""); a.status != 0 {
			d.mu.Lock()
			d.control = append(d.control, a)
			d.mu.Unlock()
		}
	}
}

// pings asks Redis itself until ctx ends, or the connection does.
func (d *direct) pings(ctx context.Context, address string) {
	pings(ctx, address, func(sent time.Time, took time.Duration) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.control = append(d.control, ask{sent: sent, took: took})
	})
}

func (d *direct) taken() (asked, control []ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]ask(nil), d.asked...), append([]ask(nil), d.control...)
}

// health is what the sidecar says of itself.
func (d *direct) health(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.sidecar+"/healthz", http.NoBody)
	if err != nil {
		panic(err) // the URL is ours
	}
	response, err := d.client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()          // it was only read
	body, _ := io.ReadAll(response.Body) // then it is empty
	return strings.TrimSpace(string(body))
}
