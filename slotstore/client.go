package slotstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client is the driver's client of one role, and the connections that it made.
type client struct {
	redis.UniversalClient
	conns  *connections
	others []*client // those of all roles, this one included
	// apart is set where the keys of two users may be on two nodes: in a cluster, and behind a proxy that hides one.
	apart atomic.Bool
}

// newClient connects at first use. It does without what old and managed servers refuse (CLIENT SETINFO, maintenance
// notifications), and a refused CLIENT SETNAME is nobody's failure.
func newClient(name string, options RedisOptions, budget time.Duration) *client {
	wait := max(budget, lateReply)
	conns := &connections{tls: options.TLS, dialer: net.Dialer{Timeout: wait, KeepAliveConfig: keepAlive}}
	universal := &redis.UniversalOptions{
		Addrs:      slices.Clone(options.Addresses), // a cluster client adds to them
		DB:         options.DB,
		Username:   options.Username,
		Password:   options.Password,
		MasterName: options.SentinelMaster,
		TLSConfig:  options.TLS,
		Dialer:     conns.dial,
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			err := conn.ClientSetName(ctx, "streamcap-"+name).Err()
			if options.Password == "" || !redis.HasErrorPrefix(err, "NOAUTH") {
				return nil
			}
			// A sentinel: the driver has signed in to all else.
			if err := signIn(ctx, conn, options); err != nil {
				return err
			}
			conn.ClientSetName(ctx, "streamcap-"+name)
			return nil
		},
		Protocol:              2,
		MaxRetries:            1, // a connection that Redis closed while it idled; every script may be repeated
		MinRetryBackoff:       time.Millisecond,
		MaxRetryBackoff:       8 * time.Millisecond,
		DialTimeout:           wait,
		DialerRetries:         1,
		ReadTimeout:           wait,
		WriteTimeout:          wait,
		ContextTimeoutEnabled: true,
		PoolSize:              workers + probeConnections,
		PipelinePoolSize:      -1, // everything here is a pipeline: a pool of its own would be a second try for each dial
		PoolTimeout:           wait,
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	switch options.Mode {
	case "cluster":
		universal.MaxRetries = -1 // a node that hangs is not to be asked twice where the slots are
		clusterOptions := universal.Cluster()
		clusterOptions.DisableRoutingPolicies = true // else it wants to be let COMMAND; every command here has one key to go by
		cluster := redis.NewClusterClient(clusterOptions)
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(dialHook{}) })
		c := &client{UniversalClient: cluster, conns: conns}
		c.apart.Store(true)
		return c
	case "sentinel":
		// To dial is to ask a sentinel first, twice where one hangs, and then the others.
		universal.MaxRetries, universal.DialTimeout = -1, 5*wait
		failover := redis.NewFailoverClient(universal.Failover())
		failover.AddHook(dialHook{master: options.SentinelMaster})
		return &client{UniversalClient: failover, conns: conns}
	}
	simple := universal.Simple()
	simple.Network = options.Network
	standalone := redis.NewClient(simple)
	standalone.AddHook(dialHook{})
	return &client{UniversalClient: standalone, conns: conns}
}

// signIn is for sentinels that want a password: the data nodes'.
func signIn(ctx context.Context, conn *redis.Conn, options RedisOptions) error {
	if options.Username != "" {
		return conn.AuthACL(ctx, options.Username, options.Password).Err()
	}
	return conn.Auth(ctx, options.Password).Err()
}

// batches are commands that travel together: in one pipeline, or in one to each node of a cluster. The driver's own
// pipeline across nodes may, where one reply is a redirection and another one a request to try again, send a command
// twice and have both replies written to it at once.
type batches struct {
	ctx     context.Context //nolint:containedctx // it lives no longer than the call that made it
	client  *client
	cluster bool
	byNode  map[redis.Cmdable]*batch
}

type batch struct {
	pipeline redis.Pipeliner
	err      error // of the whole
}

func (c *client) batches(ctx context.Context) *batches {
	_, cluster := c.UniversalClient.(*redis.ClusterClient)
	return &batches{ctx: ctx, client: c, cluster: cluster, byNode: make(map[redis.Cmdable]*batch)}
}

// of is the batch that a command on these keys belongs to.
func (b *batches) of(keys []string) *batch {
	var node redis.Cmdable = b.client
	if cluster, ok := b.client.UniversalClient.(*redis.ClusterClient); ok && len(keys) > 0 {
		primary, err := cluster.MasterForKey(b.ctx, keys[0])
		if err != nil {
			return &batch{pipeline: b.client.Pipeline(), err: err} // never sent
		}
		node = primary
	}
	if b.byNode[node] == nil {
		b.byNode[node] = &batch{pipeline: node.Pipeline()}
	}
	return b.byNode[node]
}

// send waits for all replies.
func (b *batches) send() {
	var sending sync.WaitGroup
	for _, batch := range b.byNode {
		if len(b.byNode) == 1 {
			batch.exec(b.ctx)
		} else if batch.pipeline.Len() > 0 {
			sending.Go(func() { batch.exec(b.ctx) })
		}
	}
	sending.Wait()
}

func (b *batch) exec(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			b.err = fmt.Errorf("panic in the driver: %v", p)
		}
	}()
	_, b.err = b.pipeline.Exec(ctx)
}

// doubt takes what a call met. It may show that Redis is elsewhere by now: a replica was promoted, the name leads to
// another server. Then a cluster is asked anew where its slots are, by every role, which the driver does by itself after a
// redirection and once a minute. All others are dialled anew; where a connection broke, they are without being told.
func (c *client) doubt(ctx context.Context, err error) {
	if !isElsewhere(err) {
		return
	}
	for _, other := range c.others {
		if cluster, ok := other.UniversalClient.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // it goes on by itself
		} else if isReply(err) {
			other.conns.distrust("")
		}
	}
}
