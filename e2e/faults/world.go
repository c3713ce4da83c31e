package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// world is what a row runs in: a store, a sidecar, nginx and a backend, all of them real and its own.
type world struct {
	dir     string
	opts    options
	machine *machine

	processes []*process
	cleanups  []func()
	redis     *redisServer   // the one that the sidecar begins with
	servers   []*redisServer // all of them
	replicas  []*redisServer
	nodes     []*redisServer // of a cluster
	proxy     *proxy         // nil: the sidecar talks to Redis itself
	sidecar   *sidecar
	serving   *process // the backend that nginx knows
	backend   string   // its address
	front     *process // nginx's master
	nginx     string   // address
	ttl       time.Duration
}

// setup is how a row wants its world.
type setup struct {
	store    func(context.Context, *world) (settings []string, err error) // nil: one redis-server
	proxied  bool
	settings []string      // NAME=value without STREAMCAP_
	ttl      time.Duration // SLOT_TTL; 0: the default of 2 minutes
}

// newWorld starts everything and returns once nginx serves.
func newWorld(ctx context.Context, opts options, m *machine, s setup) (*world, error) {
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, opts: opts, machine: m, ttl: s.ttl}
	if w.ttl == 0 {
		w.ttl = 2 * time.Minute
	}
	if err := w.build(ctx, s); err != nil {
		err = fmt.Errorf("%w (see %s)", err, dir)
		w.stop(true)
		return nil, err
	}
	return w, nil
}

func (w *world) build(ctx context.Context, s setup) error {
	if err := os.Chmod(w.dir, 0o755); err != nil { // nginx's workers need not be who we are
		return err
	}
	store := s.store
	if store == nil {
		store = oneRedis
	}
	settings, err := store(ctx, w)
	if err != nil {
		return err
	}
	if s.proxied {
		if w.proxy, err = startProxy(w.redis.address); err != nil {
			return err
		}
		w.cleanups = append(w.cleanups, w.proxy.close)
		settings = []string{"REDIS_URL=redis://" + w.proxy.address()}
	}
	settings = append(settings,
		"DEFAULT_LIMIT=1", "LIMITS=free:1,paid:3",
		"SLOT_TTL="+w.ttl.String(), "HEARTBEAT_INTERVAL="+(w.ttl/4).String())
	if w.sidecar, err = w.startSidecar(ctx, append(settings, s.settings...)); err != nil {
		return err
	}
	if err := w.startBackend(ctx); err != nil {
		return err
	}
	return w.startNginx(ctx)
}

// launch starts a process that ends with the world.
func (w *world) launch(name string, env []string, program string, args ...string) (*process, error) {
	p, err := launch(w.dir, fmt.Sprintf("%s-%d", name, len(w.processes)+1), env, program, args...)
	if err == nil {
		w.processes = append(w.processes, p)
	}
	return p, err
}

// stop ends everything, the last to start first.
func (w *world) stop(keep bool) {
	for _, cleanup := range slices.Backward(w.cleanups) {
		cleanup()
	}
	for _, p := range slices.Backward(w.processes) {
		if strings.HasPrefix(p.name, "nginx") {
			p.stopNow(syscall.SIGTERM) // it takes its workers along
		} else {
			p.stopNow(syscall.SIGKILL)
		}
	}
	if !keep {
		_ = os.RemoveAll(w.dir) // what stays is in the temporary directory
	}
}

func (w *world) startBackend(ctx context.Context) error {
	p, err := w.launch("backend", []string{
		"BACKEND_LISTEN=127.0.0.1:0", "BACKEND_STREAMCAP=http://" + w.sidecar.listen, "BACKEND_HEARTBEAT=500ms",
	}, w.opts.backend)
	if err != nil {
		return err
	}
	w.serving = p
	return eventually(ctx, 10*time.Second, "the backend listens", func() bool {
		line, err := os.ReadFile(p.out)
		address, found := strings.CutPrefix(string(line), "listening ")
		w.backend = strings.TrimSpace(address)
		return err == nil && found
	})
}

// listens says whether somebody takes connections there.
func listens(ctx context.Context, address string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
