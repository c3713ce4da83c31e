package main

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// unsettled keeps what the store has not taken yet and tries it again: releases until their slot would have expired by
// itself, and the undoing of acquires that were answered without knowing what the store did.
type unsettled struct {
	store   slotstore.Store
	slotTTL time.Duration
	log     zerolog.Logger

	mu       sync.Mutex
	releases map[slotstore.ID]time.Time // until
	undos    map[undo]time.Time         // until
}

type undo struct {
	id      slotstore.ID
	attempt string
	asked   time.Time // the first time
}

const (
	// unsettledMost bounds the releases, and the undos, that are kept. What is over it is left to the TTL.
	unsettledMost = 10_000
	// unsettledRetry is how often they are tried.
	unsettledRetry = 250 * time.Millisecond
	// undoFor is how long a store that answers is asked to undo what it has not got: a call that was in flight when its
	// caller got her answer arrives within it or never. A store that does not answer is asked for as long as for a release:
	// when a process that was stopped goes on, it first does what stood in its sockets.
	undoFor = 5 * time.Second
)

// keepReleases keeps what a release could not give back.
func (u *unsettled) keepReleases(ids []slotstore.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	keep(&u.releases, ids, time.Now().Add(u.slotTTL))
}

// undoNow takes back what a cancelled acquire was granted; nobody waits for it.
func (u *unsettled) undoNow(ctx context.Context, id slotstore.ID, attempt string) {
	if _, err := u.store.Undo(ctx, id, attempt); err != nil {
		u.keepUndo(id, attempt)
	}
}

// keepUndo has an acquire undone that took, or may yet take, a slot for nobody.
func (u *unsettled) keepUndo(id slotstore.ID, attempt string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	keep(&u.undos, []undo{{id, attempt, now}}, now.Add(max(undoFor, u.slotTTL)))
}

func keep[K comparable](kept *map[K]time.Time, keys []K, until time.Time) {
	if *kept == nil {
		*kept = make(map[K]time.Time)
	}
	for _, key := range keys {
		if len(*kept) < unsettledMost {
			(*kept)[key] = until
		}
	}
}

// run tries again until ctx ends.
func (u *unsettled) run(ctx context.Context) {
	tick := time.NewTicker(unsettledRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			u.settle(ctx)
		}
	}
}

// settle sends everything once. It stops at the first failure: the store is still away.
func (u *unsettled) settle(ctx context.Context) {
	if !u.settleReleases(ctx) {
		return
	}
	for _, undo := range due(u, &u.undos) {
		undone, err := u.store.Undo(ctx, undo.id, undo.attempt)
		if err != nil {
			return
		}
		if undone || time.Since(undo.asked) > undoFor { // else the acquire may still be on its way
			forget(u, &u.undos, undo)
		}
	}
}

func (u *unsettled) settleReleases(ctx context.Context) bool {
	ids := due(u, &u.releases)
	if len(ids) == 0 {
		return true
	}
	releases, err := u.store.Release(ctx, ids...)
	unrecorded := make(map[slotstore.ID]bool, len(releases.Unrecorded))
	for _, id := range releases.Unrecorded {
		unrecorded[id] = true
	}
	for _, id := range ids {
		if !unrecorded[id] {
			forget(u, &u.releases, id)
		}
	}
	if err == nil {
		u.log.Info().Int("slots", len(ids)).Msg("kept releases were taken by the store")
	}
	return err == nil
}

// due lists what is kept, and drops what is not worth keeping any longer.
func due[K comparable](u *unsettled, kept *map[K]time.Time) []K {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	var keys []K
	for key, until := range *kept {
		if now.After(until) {
			delete(*kept, key)
		} else {
			keys = append(keys, key)
		}
	}
	return keys
}

func forget[K comparable](u *unsettled, kept *map[K]time.Time, key K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(*kept, key)
}
