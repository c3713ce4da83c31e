package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"syscall"
	"time"
)

// soak is a long run under steady load in which backends are deployed, and processes killed, at random: what grows shows.
// Two stacks of nginx, sidecar and backend share a Redis, and users come through both. The first sidecar is restarted
// like all else; the second lives from begin to end, so that a leak has all the time there is.
type soak struct {
	length time.Duration
	seed   uint64 // of what happens, and when: how a stream goes on from there is the machine's
}

// soakTTL is short, so that what nobody gives back comes to its end many times.
const soakTTL = 10 * time.Second

const soakUsers = 200 // under their limit

func (k soak) title() string           { return fmt.Sprintf("soak of %v, seed %d", k.length, k.seed) }
func (k soak) shortly() time.Duration  { return k.length }
func (k soak) missing(*machine) string { return "" }
func (k soak) setup(*machine) setup    { return setup{store: lastingRedis, ttl: soakTTL} }

// soaking is a soak under way.
type soaking struct {
	*stage

	stacks   []*world
	random   *rand.Rand
	happened []incident
	series   []*series
	skipped  int       // samples that could not be taken
	sampled  time.Time // the last one
	over     int       // users seen with more slots than they may have
}

// lastingRedis is one that SIGTERM has write down what it holds.
func lastingRedis(ctx context.Context, w *world) ([]string, error) {
	server, err := w.startRedis(ctx, freeAddress("127.0.0.1"), "--save", "3600 1")
	if err != nil {
		return nil, err
	}
	w.redis = server
	return []string{"REDIS_URL=redis://" + server.address}, nil
}

// beside is a second stack on the store of the first.
func beside(first *world) func(context.Context, *world) ([]string, error) {
	return func(_ context.Context, w *world) ([]string, error) {
		w.redis = first.redis
		return []string{"REDIS_URL=redis://" + first.redis.address}, nil
	}
}

func (k soak) play(ctx context.Context, s *stage, out *result) error {
	second, err := newWorld(ctx, s.opts, s.machine, setup{store: beside(s.world), ttl: soakTTL})
	if err != nil {
		return err
	}
	defer func() {
		keep := s.opts.keep || len(out.Broken) > 0
		second.stop(keep)
		if keep {
			out.note("the second stack's logs are in %s", second.dir)
		}
	}()
	run := &soaking{
		stage: s, stacks: []*world{s.world, second},
		random: rand.New(rand.NewPCG(k.seed, 0)),
	}
	run.addSeries()
	pause(ctx, warmUp)
	fresh, err := stateOf(second.sidecar)
	if err != nil {
		return err
	}
	s.load.mix(streams(second))
	if err = s.busy(ctx); err != nil {
		return err
	}
	pinging, stop := context.WithCancel(ctx)
	defer stop()
	s.running.Go(func() {
		for pinging.Err() == nil {
			s.direct.pings(pinging, s.redis.address) // until the connection ends, as it does with Redis
			pause(pinging, pingEvery)
		}
	})
	pause(ctx, soakTTL) // what comes and goes is then at its level
	s.began = time.Now()
	if err = run.troubles(ctx, s.began.Add(k.length)); err != nil {
		return err
	}
	stop()
	return run.end(ctx, fresh, out)
}

// mix has streams of all lengths come through one more nginx: most of a second or less, some of up to 20 seconds. A tenth
// of the clients vanish in the middle. Each comes on a connection of its own: a client that finds its connection closed
// asks again by itself, and has then asked twice.
func (l *load) mix(url string) {
	l.urls = append(l.urls, url)
	l.client = newHTTPClient()
	if transport, ok := l.client.Transport.(*http.Transport); ok {
		transport.DisableKeepAlives = true
	}
	for i := len(l.under); i < soakUsers; i++ {
		l.under = append(l.under, &user{name: fmt.Sprintf("paid-%d", i), limit: 3})
	}
	l.length = func() (length, leaves time.Duration) {
		length, leaves = 100*time.Millisecond+rand.N(900*time.Millisecond), time.Hour
		switch n := rand.N(100); {
		case n < 5:
			length = 5*time.Second + rand.N(15*time.Second)
		case n < 30:
			length = time.Second + rand.N(4*time.Second)
		}
		if rand.N(10) == 0 {
			leaves = rand.N(length)
		}
		return length.Round(time.Millisecond), leaves
	}
}

// end kills nginx and the backends in the middle of it all, so that nobody says goodbye, and watches what is left.
func (k *soaking) end(ctx context.Context, fresh state, out *result) error {
	last, err := k.redis.count(ctx)
	if err != nil {
		return err
	}
	ended := time.Now()
	for _, w := range k.stacks {
		if err = w.vanish(); err != nil {
			return err
		}
	}
	k.quiet()
	k.judge(ended, out)
	k.closeSeries(out)

	var left census
	gone := func(what func() int) (took time.Duration) {
		// What outlasts three TTLs is not going to go.
		_ = eventually(ctx, 3*soakTTL, "it is gone", func() bool {
			left, err = k.redis.count(ctx)
			return err == nil && what() == 0
		})
		return time.Since(ended)
	}
	const slack = time.Second
	out.figure(last.live > usersOver/2, "slots when nginx and the backends were killed together", fmt.Sprint(last.live), "some")
	took := gone(func() int { return left.live })
	out.figure(left.live == 0 && took <= soakTTL+slack, "slots left, after",
		fmt.Sprintf("%d, %v", left.live, took.Round(time.Millisecond)), fmt.Sprintf("0 within one SLOT_TTL, %v, and %v", soakTTL, slack))
	took = gone(func() int { return left.keys })
	out.figure(left.keys == 0 && took <= 2*soakTTL+slack, "keys of users left, after",
		fmt.Sprintf("%d, %v", left.keys, took.Round(time.Millisecond)), fmt.Sprintf("0 within two (a key outlives its last slot by one), and %v", slack))

	survivor := k.stacks[1].sidecar
	settled, err := stateOf(survivor)
	if err != nil {
		return err
	}
	out.figure(settled.goroutines <= fresh.goroutines+5, "goroutines of the sidecar that was never restarted, before and after",
		fmt.Sprintf("%.0f, %.0f", fresh.goroutines, settled.goroutines), "<= 5 more")
	// Connections to Redis that a pool has made stay in it.
	out.figure(settled.files <= fresh.files+5, "its file descriptors besides those of connections to Redis, before and after",
		fmt.Sprintf("%d, %d", fresh.files, settled.files), "<= 5 more")
	return k.readLogs(out)
}

// vanish kills nginx, with all its workers, and the backend.
func (w *world) vanish() error {
	workers, err := w.front.children()
	if err != nil {
		return err
	}
	for _, pid := range append([]int{w.front.pid(), w.serving.pid()}, workers...) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // a worker may have been on its way out
	}
	return nil
}
