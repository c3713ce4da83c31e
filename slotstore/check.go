package slotstore

import (
	"context"
	"crypto/rand"
	"errors"
	"time"
)

// Probe is how one role's part of [Redis.Check] went.
type Probe struct {
	Role string
	Took time.Duration
	Err  error // an [*Error]; nil: the role can do its work
}

var errProbeLost = errors.New("the slot that was just taken is not there: do all roles reach the same Redis?")

// Check tests each role as the store itself does at its start, and then takes, extends, lists and releases one slot under a
// key that no user can own, each through the connection of the role whose work it is. It leaves nothing behind that the
// store lets it remove.
func (s *Redis) Check(ctx context.Context) []Probe {
	keys, request := s.keysOf(probeUser), rand.Text()
	var probes []Probe
	probe := func(role *role, op string, do func() error) error { //nolint:contextcheck // a test goes on to a late reply
		err := role.probe(lateReply)
		start := time.Now()
		if err == nil {
			err = do()
		}
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			err = failure(op, err)
		}
		probes = append(probes, Probe{Role: role.role, Took: time.Since(start), Err: err})
		return err
	}
	do := func(role *role, c *call) ([]any, error) {
		err := role.do(ctx, c)
		if err == nil {
			err = c.failure()
		}
		if err != nil {
			return nil, err
		}
		return list(c.runs[0], 0)
	}
	taken := probe(s.acquire, "acquire", func() error {
		if _, err := do(s.acquire, probeAcquire(keys, request)); err != nil {
			return err
		}
		return s.acquire.direct(ctx, func(ctx context.Context) error { // what an evicted set's leftovers need: no reason to open a breaker
			return s.acquire.client.Del(ctx, keys[0]+":none").Err()
		})
	}) == nil
	found := func(answers []any, err error) error {
		if err == nil && taken && (len(answers) != 1 || answers[0] != int64(yes)) {
			return errProbeLost
		}
		return err
	}
	_ = probe(s.heartbeat, "heartbeat", func() error { return found(do(s.heartbeat, probeHeartbeat(keys, request))) })
	_ = probe(s.admin, "list", func() error {
		if _, err := s.slots(ctx, keys); err != nil {
			return err
		}
		return s.admin.direct(ctx, func(ctx context.Context) error { // what writes a sample
			claim := s.admin.client.SetNX(ctx, keys[0]+":sample", claimed, time.Millisecond)
			time.Sleep(2 * time.Millisecond)
			s.admin.client.Get(ctx, keys[0]+":sample") // Redis removes it now that it is asked for, or within 100 ms
			return claim.Err()
		})
	})
	if probe(s.release, "release", func() error { return found(do(s.release, probeRelease(keys, request))) }) != nil {
		_, _ = do(s.acquire, probeRelease(keys, request)) // another connection may be let
	}
	return probes
}
