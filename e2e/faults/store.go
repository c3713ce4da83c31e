package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is one private redis-server.
type redisServer struct {
	*process

	address string
	args    []string
	client  *redis.Client // for the suite alone
}

// oneRedis is the plain case.
func oneRedis(ctx context.Context, w *world) ([]string, error) {
	server, err := w.startRedis(ctx, freeAddress("127.0.0.1"))
	if err != nil {
		return nil, err
	}
	w.redis = server
	return []string{"REDIS_URL=redis://" + server.address}, nil
}

// startRedis starts a server with further arguments and returns once it answers.
func (w *world) startRedis(ctx context.Context, address string, args ...string) (*redisServer, error) {
	r := w.plannedRedis(address, args...)
	return r, w.startRedisAgain(ctx, r)
}

// plannedRedis is one that is not started yet.
func (w *world) plannedRedis(address string, args ...string) *redisServer {
	host, port := splitAddress(address)
	r := &redisServer{address: address, args: append([]string{
		"--bind", host, "--port", port, "--dir", w.dir, "--save", "", "--appendonly", "no", "--dbfilename", port + ".rdb",
		"--protected-mode", "no",
	}, args...)}
	r.client = newClient(address)
	w.servers = append(w.servers, r)
	w.cleanups = append(w.cleanups, func() { _ = r.client.Close() }) // nothing is lost with it
	return r
}

// startRedisAgain starts it empty, where it was.
func (w *world) startRedisAgain(ctx context.Context, r *redisServer) error {
	p, err := w.launch("redis", nil, "redis-server", r.args...)
	if err != nil {
		return err
	}
	r.process = p
	if _, err := r.answers(ctx, 10*time.Second); err != nil {
		said, _ := os.ReadFile(p.out) // then it said nothing
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// newClient is one for orders to a server; each has three seconds.
func newClient(address string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: 3 * time.Second,
	})
}

// do gives an order.
func (r *redisServer) do(ctx context.Context, args ...any) error {
	if err := r.client.Do(ctx, args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("%v: %w", args, err)
	}
	return nil
}

// answers returns when the server answered a PING on a connection of its own.
func (r *redisServer) answers(ctx context.Context, within time.Duration) (time.Time, error) {
	return when(ctx, within, r.address+" answers", func() bool {
		conn, err := net.DialTimeout("tcp", r.address, 50*time.Millisecond)
		if err != nil {
			return false
		}
		defer conn.Close() // it was for one PING
		_ = conn.SetDeadline(time.Now().Add(50 * time.Millisecond))
		answer := make([]byte, 5)
		_, writeErr := conn.Write([]byte("PING\r\n"))
		_, readErr := conn.Read(answer)
		return writeErr == nil && readErr == nil && answer[0] != '-'
	})
}

// isPrimary returns when the server says that it is a primary.
func (r *redisServer) isPrimary(ctx context.Context, within time.Duration) (time.Time, error) {
	return when(ctx, within, r.address+" is a primary", func() bool {
		text, err := r.client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(text, "role:master")
	})
}

// slotsLeft counts the live slots of all users in every primary that answers.
func (w *world) slotsLeft(ctx context.Context) (left []string) {
	for _, server := range w.servers {
		if _, err := server.answers(ctx, 0); err != nil {
			continue
		}
		if info, err := server.client.Info(ctx, "replication").Result(); err != nil || !strings.Contains(info, "role:master") {
			continue
		}
		now, err := server.client.Time(ctx).Result()
		if err != nil {
			continue
		}
		keys := server.client.Scan(ctx, 0, "streamcap:{*}:slots", 1000).Iterator()
		for keys.Next(ctx) {
			live, err := server.client.ZCount(ctx, keys.Val(), fmt.Sprintf("(%d", now.UnixMilli()), "+inf").Result()
			if err == nil && live > 0 && !strings.Contains(keys.Val(), "{%") {
				left = append(left, fmt.Sprintf("%s %d", keys.Val(), live))
			}
		}
	}
	return left
}

// census is what one server holds for all users.
type census struct {
	live  int // slots
	slots int // with those that have expired, and nobody has pruned
	keys  int
	over  int // users with more live slots than they may have
}

// count counts it. The names of the load's users tell their limits.
func (r *redisServer) count(ctx context.Context) (c census, err error) {
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return c, err
	}
	found := make(map[string]bool) // SCAN may find a key twice
	keys := r.client.Scan(ctx, 0, "streamcap:{[^%]*}:*", 1000).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	c.keys = len(found)
	all, counts := make(map[string]*redis.IntCmd), make(map[string]*redis.IntCmd)
	_, err = r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for key := range found {
			if strings.HasSuffix(key, ":slots") {
				all[key] = pipe.ZCard(ctx, key)
				counts[key] = pipe.ZCount(ctx, key, fmt.Sprintf("(%d", now.UnixMilli()), "+inf")
			}
		}
		return nil
	})
	for key, count := range counts {
		limit := 1
		if strings.HasPrefix(key, "streamcap:{paid-") {
			limit = 3
		}
		live := int(count.Val())
		c.live += live
		c.slots += int(all[key].Val())
		if live > limit {
			c.over++
		}
	}
	return c, errors.Join(keys.Err(), err)
}

func when(ctx context.Context, within time.Duration, what string, ok func() bool) (time.Time, error) {
	err := eventually(ctx, within, what, ok)
	return time.Now(), err
}

// sentinels starts a primary with two replicas, and three sentinels that watch them.
func sentinels(ctx context.Context, w *world) ([]string, error) {
	primary, err := w.startRedis(ctx, freeAddress("127.0.0.1"))
	if err != nil {
		return nil, err
	}
	w.redis = primary
	host, port := splitAddress(primary.address)
	w.replicas = nil
	for range 2 {
		replica, startErr := w.startRedis(ctx, freeAddress("127.0.0.1"),
			"--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
		if startErr != nil {
			return nil, startErr
		}
		w.replicas = append(w.replicas, replica)
	}
	var addresses []string
	for i := range 3 {
		address := freeAddress("127.0.0.1")
		_, ownPort := splitAddress(address)
		conf := filepath.Join(w.dir, fmt.Sprintf("sentinel%d.conf", i))
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\nprotected-mode no\ndir %s\nsentinel monitor streams %s %s 2\n"+
			"sentinel down-after-milliseconds streams 700\nsentinel failover-timeout streams 3000\n", ownPort, w.dir, host, port)
		if err = os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, err
		}
		if _, err = w.launch("sentinel", nil, "redis-server", conf, "--sentinel"); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	err = eventually(ctx, 20*time.Second, "sentinels and replicas know each other", func() bool {
		for _, address := range addresses {
			client := newClient(address)
			info, infoErr := client.Info(ctx, "sentinel").Result()
			_ = client.Close() // it was for one question
			if infoErr != nil || !strings.Contains(info, "status=ok") || !strings.Contains(info, "slaves=2,sentinels=3") {
				return false
			}
		}
		return w.synced(ctx)
	})
	return []string{
		"REDIS_URL=redis://" + strings.Join(addresses, ","), "REDIS_MODE=sentinel", "REDIS_SENTINEL_MASTER=streams",
	}, err
}

// synced says whether every replica follows its primary.
func (w *world) synced(ctx context.Context) bool {
	for _, replica := range w.replicas {
		info, err := replica.client.Info(ctx, "replication").Result()
		if err != nil || !strings.Contains(info, "master_link_status:up") {
			return false
		}
	}
	return true
}

// freeClusterAddress is one whose cluster bus, 10,000 above, is free and below the kernel's own ports, too.
func freeClusterAddress() string {
	for {
		address := freeAddress("127.0.0.1")
		host, port := splitAddress(address)
		number, err := strconv.Atoi(port)
		if err != nil || number > 22_000 {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number+10_000)))
		if err == nil && listener.Close() == nil {
			return address
		}
	}
}

// cluster starts three primaries with a replica each.
func cluster(ctx context.Context, w *world) ([]string, error) {
	create := []string{"--cluster", "create"}
	for range 6 {
		address := freeClusterAddress()
		_, port := splitAddress(address)
		node, err := w.startRedis(ctx, address,
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes-"+port+".conf", "--cluster-node-timeout", "1000",
			"--repl-diskless-sync-delay", "0")
		if err != nil {
			return nil, err
		}
		w.nodes = append(w.nodes, node)
		create = append(create, address)
	}
	if err := command("redis-cli", append(create, "--cluster-replicas", "1", "--cluster-yes")...); err != nil {
		return nil, err
	}
	w.redis = w.nodes[0]
	w.replicas = w.nodes[3:]
	err := eventually(ctx, 20*time.Second, "the cluster is whole", func() bool {
		for _, node := range w.nodes {
			info, err := node.client.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:6") {
				return false
			}
		}
		return w.synced(ctx)
	})
	return []string{
		"REDIS_URL=redis://" + w.nodes[0].address + "," + w.nodes[1].address + "," + w.nodes[2].address, "REDIS_MODE=cluster",
	}, err
}
