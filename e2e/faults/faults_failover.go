package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// failovers are the faults in which another Redis takes over.
func failovers() []fault {
	// A primary that is killed takes the last few writes with it, a release among them: its slot stands for the TTL.
	const ttl = 10 * time.Second
	trio := func(*machine) setup { return setup{store: sentinels, ttl: ttl} }
	six := func(*machine) setup { return setup{store: cluster, ttl: ttl} }
	named := func(*machine) setup { return setup{store: namedRedis} }
	noNames := func(m *machine) string { return m.names }
	return []fault{
		{name: "sentinel failover", full: time.Second, world: trio, do: primaryKilled, loses: true, back: failoverBound, after: 4 * time.Second},
		{name: "cluster failover", full: time.Second, world: six, do: primaryKilled, loses: true, back: failoverBound, after: 4 * time.Second, quietly: true},
		{name: "cluster slot migration", full: time.Second, world: six, do: slotMigration, back: failoverBound, after: 3 * time.Second, quietly: true},
		{
			name: "DNS name moves, the old address is gone", full: 3 * time.Second, world: named, do: nameMoves,
			needs: func(m *machine) string { return cmp.Or(m.names, m.firewall) },
		},
		{name: "DNS name moves, the old primary is a replica", full: 3 * time.Second, world: named, do: roleMoves, needs: noNames},
	}
}

// primaryKilled kills a primary; a replica of its takes over.
func primaryKilled(ctx context.Context, s *stage) (time.Time, error) {
	if err := s.redis.end(syscall.SIGKILL); err != nil {
		return time.Time{}, err
	}
	return s.promoted(ctx, s.replicas)
}

// promoted returns when one of the replicas has become a primary.
func (s *stage) promoted(ctx context.Context, replicas []*redisServer) (time.Time, error) {
	found, stop := context.WithCancel(ctx)
	defer stop()
	answers := make(chan time.Time, len(replicas))
	for _, replica := range replicas {
		go func() {
			if at, err := replica.isPrimary(found, 30*time.Second); err == nil {
				answers <- at
			}
		}()
	}
	select {
	case at := <-answers:
		return at, nil
	case <-time.After(30 * time.Second):
		return time.Time{}, errors.New("no replica became a primary within 30 s")
	}
}

// slotMigration moves half of the first node's slots to the second.
func slotMigration(ctx context.Context, s *stage) (time.Time, error) {
	from, err := s.nodes[0].client.ClusterMyID(ctx).Result()
	if err != nil {
		return time.Time{}, err
	}
	to, err := s.nodes[1].client.ClusterMyID(ctx).Result()
	if err != nil {
		return time.Time{}, err
	}
	output, err := exec.CommandContext(ctx, "redis-cli", "--cluster", "reshard", s.nodes[0].address,
		"--cluster-from", from, "--cluster-to", to, "--cluster-slots", "2700", "--cluster-yes").CombinedOutput()
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %s", err, output)
	}
	return time.Now(), nil
}

const (
	storeName   = "store.test"
	anotherHost = "127.0.1.2"
)

// namedRedis is a Redis that the sidecar knows by name.
func namedRedis(ctx context.Context, w *world) ([]string, error) {
	server, err := w.startRedis(ctx, freeAddress("127.0.1.1"))
	if err != nil {
		return nil, err
	}
	w.redis = server
	host, port := splitAddress(server.address)
	return []string{"REDIS_URL=redis://" + storeName + ":" + port}, w.machine.resolver.point(storeName, host)
}

// another starts a second Redis on the same port of another address.
func (s *stage) another(ctx context.Context, args ...string) (*redisServer, error) {
	_, port := splitAddress(s.redis.address)
	return s.startRedis(ctx, net.JoinHostPort(anotherHost, port), args...)
}

// nameMoves takes the old address from the network; after a while the name means a new, empty Redis.
func nameMoves(ctx context.Context, s *stage) (time.Time, error) {
	_, err := s.another(ctx)
	if err != nil {
		return time.Time{}, err
	}
	undo, err := s.machine.drop(s.redis.address)
	if err != nil {
		return time.Time{}, err
	}
	s.cleanups = append(s.cleanups, func() { _ = undo() }) // the namespace ends with us
	pause(ctx, s.hold)
	s.lost()
	err = s.machine.resolver.point(storeName, anotherHost)
	return time.Now(), err
}

// roleMoves is a managed switch of the primary behind one name: the old one answers READONLY from then on.
func roleMoves(ctx context.Context, s *stage) (time.Time, error) {
	host, port := splitAddress(s.redis.address)
	fresh, err := s.another(ctx, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0", "--replica-announce-ip", anotherHost)
	if err != nil {
		return time.Time{}, err
	}
	s.replicas = append(s.replicas, fresh)
	err = eventually(ctx, 10*time.Second, "the replica follows, and the primary knows it", func() bool {
		info, infoErr := s.redis.client.Info(ctx, "replication").Result()
		return infoErr == nil && strings.Contains(info, "state=online") && s.synced(ctx)
	})
	if err != nil {
		return time.Time{}, err
	}
	s.began = time.Now()
	if err = s.redis.do(ctx, "FAILOVER", "TO", anotherHost, port); err != nil {
		return time.Time{}, err
	}
	if _, err = fresh.isPrimary(ctx, 10*time.Second); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	err = s.machine.resolver.point(storeName, anotherHost)
	return time.Now(), err
}
