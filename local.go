package main

import (
	"context"
	"errors"

	"streamcap/slotstore"
)

// localUsers is how many users the local cap keeps at the most: an outage is no way to fill this process's memory.
const localUsers = 100_000

// localSlots is the store under STREAMCAP_ON_STORE_FAILURE=local: it answers heartbeats and releases of the slots that
// this sidecar granted by itself, in memory, while the store could not answer, and hands on all others. The acquire
// handler fills the memory. Local slots are never copied to the store, so for as long as the streams of an outage run, a
// user may hold up to one more limit on each sidecar.
type localSlots struct {
	slotstore.Store
	memory   *slotstore.Memory
	released func(ids []slotstore.ID) // told what the store may hold, too
}

// split parts the ids of local slots from the others.
func (s localSlots) split(ids []slotstore.ID) (local, others []slotstore.ID) {
	if s.memory.UserCount() == 0 {
		return nil, ids
	}
	for _, id := range ids {
		if s.memory.Holds(id) {
			local = append(local, id)
		} else {
			others = append(others, id)
		}
	}
	return local, others
}

func (s localSlots) Heartbeat(ctx context.Context, ids ...slotstore.ID) (slotstore.Beats, error) {
	local, others := s.split(ids)
	ours, localErr := s.memory.Heartbeat(ctx, local...)
	beats, err := s.Store.Heartbeat(ctx, others...)
	beats.Extended += ours.Extended
	beats.Gone = append(beats.Gone, ours.Gone...)
	return beats, errors.Join(err, localErr)
}

func (s localSlots) Release(ctx context.Context, ids ...slotstore.ID) (slotstore.Releases, error) {
	local, others := s.split(ids)
	ours, localErr := s.memory.Release(ctx, local...)
	s.released(local)
	releases, err := s.Store.Release(ctx, others...)
	releases.Released = append(releases.Released, ours.Released...)
	releases.Absent += ours.Absent
	return releases, errors.Join(err, localErr)
}
