// Backend is a small streaming server that shows how a service keeps the slots of its streams:
// a heartbeat while a stream runs, a release when it ends. Lift slots and its three methods into
// your own service; the rest is the stream that they are shown on.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// slots tells streamcap which of our streams are alive.
type slots struct {
	streamcap string        // base URL of streamcap's public listener; empty = tell nobody
	token     string        // STREAMCAP_BACKEND_TOKEN, where streamcap asks for one
	heartbeat time.Duration // STREAMCAP_HEARTBEAT_INTERVAL: a third of the TTL or less
	release   bool          // false leaves the end of a stream to nginx's line and to the TTL
	client    *http.Client  // its timeout bounds every call
}

// keep heartbeats the slot that nginx took for r, until the function it returns is called, which
// gives the slot back. Without a held slot (streamcap failed open, or didn't count this request)
// there is nothing to keep.
func (s *slots) keep(r *http.Request) (release func()) {
	user, id := r.Header.Get("X-User-Id"), r.Header.Get("X-Request-Id")
	if s.streamcap == "" || r.Header.Get("X-Stream-Slot") != "held" {
		return func() {}
	}
	// The slot outlives the request's context: that one is cancelled when the client leaves, which
	// is exactly when the release has to be sent.
	ctx := context.WithoutCancel(r.Context())
	ended := make(chan struct{})
	var heartbeats sync.WaitGroup
	heartbeats.Go(func() { s.beat(ctx, user, id, ended) })
	return func() {
		close(ended)
		heartbeats.Wait() // one that is under way must not come after the release
		if !s.release {
			return
		}
		// No retry: a release that gets lost costs the user a wait for the TTL, no more.
		if _, err := s.post(ctx, "/release", user, id); err != nil {
			log.Printf("release: %v", err)
		}
	}
}

// beat sends a heartbeat at once, since a fresh slot may be leased for less than the TTL
// (STREAMCAP_INITIAL_TTL), and then one each interval. One timer a stream is fine for thousands of
// streams; for more, a process can keep them in a set and send one batch: {"slots":[{"user":…,"id":…}]}.
func (s *slots) beat(ctx context.Context, user, id string, ended <-chan struct{}) {
	ticker := time.NewTicker(s.heartbeat)
	defer ticker.Stop()
	for gone := false; ; {
		status, err := s.post(ctx, "/heartbeat", user, id)
		switch {
		case err != nil:
			log.Printf("heartbeat: %v", err) // the next one makes up for it: the TTL allows two to fail
		case status == http.StatusNoContent: // kept
		case status == http.StatusAccepted: // not recorded: the store is away, which is no reason to end a stream
		case status == http.StatusGone && gone: // said already
		case status == http.StatusGone:
			// Someone released it, the store lost it, or it grew too old. No heartbeat brings it
			// back; the stream goes on uncounted. End the stream here only if you mean to.
			log.Printf("heartbeat: user %q no longer holds a slot for request %q", user, id)
			gone = true
		default:
			log.Printf("heartbeat: unexpected status %d", status)
		}
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
	}
}

// post names one slot to streamcap and returns the status of its answer.
func (s *slots) post(ctx context.Context, path, user, id string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.streamcap+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-User-Id", user)
	req.Header.Set("X-Request-Id", id)
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// stream sends server-sent events: what nginx said about the slot, then a number every ?every=
// (default 1s) for ?for= (default: until the client leaves).
func (s *slots) stream(w http.ResponseWriter, r *http.Request) {
	defer s.keep(r)()

	every, errEvery := time.ParseDuration(cmp.Or(r.FormValue("every"), "1s"))
	length, errLength := time.ParseDuration(cmp.Or(r.FormValue("for"), "0s"))
	if errEvery != nil || errLength != nil || every <= 0 || length < 0 {
		http.Error(w, "every and for are durations, such as 500ms or 10s", http.StatusBadRequest)
		return
	}
	var end <-chan time.Time // nil: never
	if length > 0 {
		end = time.After(length)
	}

	// net/http notices that a client has left only once the request's body is read to its end.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	first, err := json.Marshal(struct {
		User   string `json:"user"`
		ID     string `json:"id"`
		Slot   string `json:"slot"`
		Reason string `json:"reason"`
	}{r.Header.Get("X-User-Id"), r.Header.Get("X-Request-Id"), r.Header.Get("X-Stream-Slot"), r.Header.Get("X-Stream-Reason")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // nginx hands on each event as it comes
	if r.Method == http.MethodHead || !send(w, string(first)) {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-r.Context().Done(): // the client left, or we are stopping
			return
		case <-end:
			return
		case <-ticker.C:
			if !send(w, fmt.Sprint(n)) {
				return
			}
		}
	}
}

// send writes one event and reports whether the client is still there.
func send(w http.ResponseWriter, event string) bool {
	_, err := fmt.Fprintf(w, "data: %s\n\n", event)
	return err == nil && http.NewResponseController(w).Flush() == nil
}

// echo holds a slot for as long as a WebSocket stays open, and sends back what comes.
func (s *slots) echo(w http.ResponseWriter, r *http.Request) {
	defer s.keep(r)()

	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer conn.CloseNow() //nolint:errcheck // Nothing is left to tell: the connection is over.
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

func main() {
	log.SetFlags(log.LstdFlags | log.Lmsgprefix)
	log.SetPrefix("backend: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// run serves until SIGTERM or SIGINT, then ends the streams and waits until each has released its slot.
func run() error {
	heartbeat, err := time.ParseDuration(env("BACKEND_HEARTBEAT", "20s"))
	if err != nil || heartbeat <= 0 {
		return fmt.Errorf("BACKEND_HEARTBEAT is a duration, such as 20s: %q", os.Getenv("BACKEND_HEARTBEAT"))
	}
	s := &slots{
		streamcap: env("BACKEND_STREAMCAP", "http://127.0.0.1:9180"),
		token:     env("BACKEND_TOKEN", ""),
		heartbeat: heartbeat,
		release:   env("BACKEND_RELEASE", "true") != "false",
		client:    &http.Client{Timeout: 2 * time.Second},
	}

	running, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var streams sync.WaitGroup // Shutdown doesn't wait for WebSockets
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			streams.Add(1)
			defer streams.Done()
			switch {
			case strings.HasPrefix(r.URL.Path, "/stream/"):
				s.stream(w, r)
			case strings.HasPrefix(r.URL.Path, "/ws/"):
				s.echo(w, r)
			default:
				fmt.Fprintln(w, "ok")
			}
		}),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return running }, // a stop ends the streams
	}

	listener, err := net.Listen("tcp", env("BACKEND_LISTEN", "127.0.0.1:9000"))
	if err != nil {
		return err
	}
	fmt.Printf("listening %s\n", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case failure := <-served:
		return failure
	case <-running.Done():
	}
	stop() // a second signal ends the process at once

	// Shutdown first: nothing new begins, so that what streams waits for can only get less.
	bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = server.Shutdown(bounded)
	ended := make(chan struct{})
	go func() { streams.Wait(); close(ended) }()
	select {
	case <-ended:
		return err
	case <-bounded.Done():
		return errors.New("streams still run after 5s: left to the TTL")
	}
}

// env is what the environment says, or fallback where it says nothing; empty is an answer.
func env(name, fallback string) string {
	if value, ok := os.LookupEnv(name); ok {
		return value
	}
	return fallback
}
