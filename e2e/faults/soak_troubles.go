package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// trouble is what may happen in a soak, and what its users may see of it.
type trouble struct {
	name   string
	cuts   bool // streams break off, and starts get a 502: their backend was killed under them, or nginx's worker
	ends   bool // streams end early, as those of a backend do that is told to stop
	opens  bool // starts fail open
	happen func(ctx context.Context, k *soaking) error
}

// incident is one that happened.
type incident struct {
	trouble

	from, to time.Time
}

// soakTroubles are drawn like cards: each comes once before any comes again.
func soakTroubles() []trouble {
	return []trouble{
		{name: "backend deployed, the old one gets SIGTERM", ends: true, happen: deployed},
		{name: "SIGKILL of a backend, then another one", cuts: true, happen: backendKilled},
		{name: "SIGKILL of an nginx worker", cuts: true, happen: workerKilled},
		{name: "sidecar restarted with SIGTERM", opens: true, happen: sidecarGone(syscall.SIGTERM)},
		{name: "sidecar restarted after SIGKILL", opens: true, happen: sidecarGone(syscall.SIGKILL)},
		{name: "Redis restarted with SIGTERM, its data kept", opens: true, happen: redisRestarted},
		{name: "Redis restarted after SIGKILL, empty", opens: true, happen: redisEmptied},
		{name: "SIGSTOP of Redis for up to 3 s", opens: true, happen: redisStopped},
		{name: "SCRIPT FLUSH", happen: func(ctx context.Context, k *soaking) error { return k.redis.do(ctx, "SCRIPT", "FLUSH") }},
	}
}

// troubles happen one after the other until it is time, with a calm of a few seconds after each.
func (k *soaking) troubles(ctx context.Context, until time.Time) error {
	const longest = 12 * time.Second // a trouble and its calm
	var deck []trouble
	for ctx.Err() == nil {
		k.calm(ctx, 3*time.Second+k.upTo(5*time.Second))
		if time.Until(until) < longest {
			k.calm(ctx, time.Until(until))
			return ctx.Err()
		}
		if len(deck) == 0 {
			deck = soakTroubles()
			k.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		next := incident{trouble: deck[0], from: time.Now()}
		deck = deck[1:]
		if err := next.happen(ctx, k); err != nil {
			return fmt.Errorf("%s: %w", next.name, err)
		}
		next.to = time.Now()
		k.happened = append(k.happened, next)
	}
	return ctx.Err()
}

func (k *soaking) upTo(most time.Duration) time.Duration {
	return time.Duration(k.random.Int64N(int64(most)))
}

// stack is one of them, at random.
func (k *soaking) stack() *world { return k.stacks[k.random.IntN(len(k.stacks))] }

// deployed is a deploy as it should be: the new backend first.
func deployed(ctx context.Context, k *soaking) error {
	w := k.stack()
	old := w.serving
	if err := w.startBackend(ctx); err != nil {
		return err
	}
	if err := w.reload(ctx); err != nil {
		return err
	}
	pause(ctx, 500*time.Millisecond) // old workers may still be asking the old one
	return old.end(syscall.SIGTERM)
}

// backendKilled is a crash: until nginx knows another backend there is none.
func backendKilled(ctx context.Context, k *soaking) error {
	w := k.stack()
	if err := w.serving.end(syscall.SIGKILL); err != nil {
		return err
	}
	if err := w.startBackend(ctx); err != nil {
		return err
	}
	return w.reload(ctx)
}

// workerKilled leaves streams that nginx says nothing of, and acquires that nobody waits for.
func workerKilled(ctx context.Context, k *soaking) error {
	w := k.stack()
	workers, err := w.front.children()
	if err != nil {
		return err
	}
	k.load.leave(true)
	defer k.load.back()
	if err := syscall.Kill(workers[k.random.IntN(len(workers))], syscall.SIGKILL); err != nil {
		return err
	}
	pause(ctx, 300*time.Millisecond)
	return nil
}

func sidecarGone(signal syscall.Signal) func(context.Context, *soaking) error {
	return func(ctx context.Context, k *soaking) error {
		k.load.leave(true)
		defer k.load.back()
		return k.restart(ctx, k.sidecar, signal)
	}
}

func redisRestarted(ctx context.Context, k *soaking) error {
	k.load.leave(false)
	defer k.load.back()
	if err := k.redis.end(syscall.SIGTERM); err != nil {
		return err
	}
	return k.startRedisAgain(ctx, k.redis)
}

func redisEmptied(ctx context.Context, k *soaking) error {
	k.load.leave(false)
	defer k.load.back()
	if err := k.redis.end(syscall.SIGKILL); err != nil {
		return err
	}
	k.lost()
	_, port := splitAddress(k.redis.address)
	if err := os.Remove(filepath.Join(k.dir, port+".rdb")); err != nil && !os.IsNotExist(err) {
		return err
	}
	return k.startRedisAgain(ctx, k.redis)
}

func redisStopped(ctx context.Context, k *soaking) error {
	k.load.leave(false)
	defer k.load.back()
	if err := k.redis.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, 300*time.Millisecond+k.upTo(2700*time.Millisecond))
	if err := k.redis.signal(syscall.SIGCONT); err != nil {
		return err
	}
	_, err := k.redis.answers(ctx, 5*time.Second)
	return err
}
