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

// Check takes, extends, lists and releases one slot under a key that no user can own, each through the connection of
// the role whose work it is. It leaves nothing behind that the store lets it remove.
func (s *Redis) Check(ctx context.Context) []Probe {
	keys, request := s.keysOf(probeUser), rand.Text()
	var probes []Probe
	probe := func(role, op string, do func() error) error {
		start := time.Now()
		err := do()
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				err = failure(op, err)
			}
		}
		probes = append(probes, Probe{Role: role, Took: time.Since(start), Err: err})
		return err
	}
	do := func(role *role, c *call) ([]any, error) {
		if err := role.do(ctx, c); err != nil {
			return nil, err
		}
		return list(c.runs[0], 0)
	}
	taken := probe(RoleAcquire, "acquire", func() error {
		_, err := do(s.acquire, probeAcquire(keys, request))
		return err
	}) == nil
	found := func(answers []any, err error) error {
		if err == nil && taken && (len(answers) != 1 || answers[0] != int64(yes)) {
			return errProbeLost
		}
		return err
	}
	_ = probe(RoleHeartbeat, "heartbeat", func() error { return found(do(s.heartbeat, probeHeartbeat(keys, request))) })
	_ = probe(RoleAdmin, "list", func() error {
		_, err := s.slots(ctx, keys)
		for _, c := range s.otherSlots() {
			if err == nil {
				err = errors.Join(s.admin.do(ctx, c), c.failure())
			}
		}
		return err
	})
	if probe(RoleRelease, "release", func() error { return found(do(s.release, probeRelease(keys, request))) }) != nil {
		_, _ = do(s.acquire, probeRelease(keys, request)) // another connection may be let
	}
	return probes
}
