package main

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// unsettled keeps what the store has not taken yet and tries it again: releases until their slot would have expired by
// itself, and the undoing of acquires that were answered without knowing what the store did until it answers.
type unsettled struct {
	store   slotstore.Store
	slotTTL time.Duration
	metrics *metrics
	log     zerolog.Logger

	mu       sync.Mutex
	releases map[slotstore.ID]kept
	undos    map[undo]kept
}

// kept says since when and until when something is kept, and for whom it counts.
type kept struct {
	since, until time.Time
	source       string
}

type undo struct {
	id      slotstore.ID
	attempt string
}

const (
	// unsettledMost bounds the releases, and the undos, that are kept. What is over it is left to the TTL.
	unsettledMost = 10_000
	// unsettledRetry is how often they are tried.
	unsettledRetry = 250 * time.Millisecond
	// undoFor is how long a store that answers is asked to undo what it has not got: a call that was in flight when its
	// caller got her answer arrives within it or never. A store that does not answer is asked until it does: when a process
	// that was stopped goes on, it first does what stood in its sockets, and what it grants then lives from then on.
	undoFor = 5 * time.Second
)

// keepReleases keeps what a release could not give back.
func (u *unsettled) keepReleases(source string, ids []slotstore.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		keep(u, &u.releases, id, source, u.slotTTL)
	}
}

// keepTwins has what the store may hold of released local slots released there, too: a stream may have had its slot before
// the outage in which this sidecar renewed it. It leaves room for other releases.
func (u *unsettled) keepTwins(ids []slotstore.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		if len(u.releases) < unsettledMost/2 {
			keep(u, &u.releases, id, sourceTwin, u.slotTTL)
		}
	}
}

// sourceTwin counts nowhere: the slot counted when it was released from memory.
const sourceTwin = "twin"

// undoNow takes back what a cancelled acquire was granted; nobody waits for it.
func (u *unsettled) undoNow(ctx context.Context, id slotstore.ID, attempt string) {
	undone, err := u.store.Undo(ctx, id, attempt)
	if err != nil {
		u.keepUndo(id, attempt)
		return
	}
	u.countUndo(undone)
}

// keepUndo has an acquire undone that took, or may yet take, a slot for nobody.
func (u *unsettled) keepUndo(id slotstore.ID, attempt string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	keep(u, &u.undos, undo{id, attempt}, sourceAbandoned, untilItAnswers)
}

func (u *unsettled) countUndo(undone bool) {
	if undone {
		u.metrics.releases[sourceAbandoned].add(resultReleased, 1)
	} else {
		u.metrics.releases[sourceAbandoned].add(resultAbsent, 1)
	}
}

// keep keeps something, and counts it if it was not kept already.
func keep[K comparable](u *unsettled, all *map[K]kept, key K, source string, lifetime time.Duration) {
	if *all == nil {
		*all = make(map[K]kept)
	}
	old, already := (*all)[key]
	switch {
	case already:
		source = old.source
	case len(*all) >= unsettledMost:
		u.metrics.shed.add(slotstore.RoleRelease, 1)
		return
	default:
		u.metrics.releases[source].add(resultUnrecorded, 1)
	}
	now := time.Now()
	(*all)[key] = kept{since: now, until: now.Add(lifetime), source: source}
}

// untilItAnswers is longer than any outage.
const untilItAnswers = 100 * 365 * 24 * time.Hour

// depth is how much is kept.
func (u *unsettled) depth() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.releases) + len(u.undos)
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

// unsettledLast is how long a stop waits for a store that may answer again: a probe, and a little more.
const unsettledLast = 700 * time.Millisecond

// end tries for the last time.
func (u *unsettled) end() {
	ctx, cancel := context.WithTimeout(context.Background(), unsettledLast)
	defer cancel()
	tick := time.NewTicker(unsettledRetry / 2)
	defer tick.Stop()
	for u.settle(ctx); u.depth() > 0 && ctx.Err() == nil; u.settle(ctx) {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if left := u.depth(); left > 0 {
		u.log.Warn().Int("slots", left).Msg("the store has not taken every kept release: the rest is left to the TTL")
	}
}

// away says whether an error is the store's, and not of one user's key, which must keep nobody else's work waiting.
func away(err error) bool { return err != nil && slotstore.ReasonOf(err) != slotstore.WrongType }

// settle sends everything once. It stops at the first failure: the store is still away.
func (u *unsettled) settle(ctx context.Context) {
	ctx = slotstore.Again(ctx)
	if !u.settleReleases(ctx) {
		return
	}
	for undo, kept := range due(u, &u.undos) {
		undone, err := u.store.Undo(ctx, undo.id, undo.attempt)
		if away(err) {
			return
		}
		if undone || time.Since(kept.since) > undoFor { // else the acquire may still be on its way
			u.countUndo(undone)
			forget(u, &u.undos, undo)
		}
	}
}

func (u *unsettled) settleReleases(ctx context.Context) bool {
	bySource := make(map[string][]slotstore.ID)
	for id, kept := range due(u, &u.releases) {
		bySource[kept.source] = append(bySource[kept.source], id)
	}
	for source, ids := range bySource {
		done, err := u.store.Release(ctx, ids...)
		unrecorded := make(map[slotstore.ID]bool, len(done.Unrecorded))
		for _, id := range done.Unrecorded {
			unrecorded[id] = true
		}
		for _, id := range ids {
			if !unrecorded[id] {
				forget(u, &u.releases, id)
			}
		}
		taken := len(ids) - len(done.Unrecorded)
		u.metrics.released(source, done)
		if away(err) {
			return false
		}
		if taken > 0 && source != sourceTwin {
			u.log.Info().Str("source", source).Int("slots", taken).Msg("kept releases were taken by the store")
		}
	}
	return true
}

// due lists what is kept, and drops what is not worth keeping any longer.
func due[K comparable](u *unsettled, all *map[K]kept) map[K]kept {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(*all, func(_ K, k kept) bool { return now.After(k.until) })
	return maps.Clone(*all)
}

func forget[K comparable](u *unsettled, all *map[K]kept, key K) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(*all, key)
}
