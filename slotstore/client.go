package slotstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// handshakeTimeout is for TLS alone. It ends before the first self-test does, which then can say what is wrong.
const handshakeTimeout = 800 * time.Millisecond

// keepAlive notices within a minute that the peer is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3} //nolint:gochecknoglobals // a constant

// client is the driver's client of one role, and the connections that it made.
type client struct {
	redis.UniversalClient
	conns  *connections
	others []*client // those of all roles, this one included
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
		return &client{UniversalClient: cluster, conns: conns}
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

// dialHook hands the driver's pool a connection for every dial. The pool counts those that fail, and after as many as it
// has room for it tries only once a second: too late for a Redis that has to be found within one.
type dialHook struct{ master string }

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		if errors.Is(err, redis.Nil) {
			err = fmt.Errorf("%w %q", errNoMaster, h.master)
		}
		if err != nil {
			return unconnected{&dialError{err}}, nil //nolint:nilerr // it comes out at the first use
		}
		return conn, nil
	}
}

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// dialError is what the driver unwraps once before it hands it on.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// unconnected is a connection that could not be made, and says so to the first who uses it.
type unconnected struct{ err error }

func (c unconnected) Read([]byte) (int, error)         { return 0, c.err }
func (c unconnected) Write([]byte) (int, error)        { return 0, c.err }
func (c unconnected) Close() error                     { return nil }
func (c unconnected) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (c unconnected) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (c unconnected) SetDeadline(time.Time) error      { return nil }
func (c unconnected) SetReadDeadline(time.Time) error  { return nil }
func (c unconnected) SetWriteDeadline(time.Time) error { return nil }

// connections dials, and knows which of its connections are not to be used again.
type connections struct {
	dialer net.Dialer
	tls    *tls.Config // nil: plaintext

	mu     sync.Mutex
	epochs map[string]int // how often an address was distrusted
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	epoch := c.epoch(address) // before a name is resolved
	conn, err := c.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// Closed is closed: else the kernel keeps sending what nobody has acknowledged, and a network that comes back
		// delivers acquires whose undoing was done with long before.
		_ = tcp.SetLinger(0)
	}
	if c.tls != nil {
		if conn, err = handshake(ctx, conn, c.tls, address); err != nil {
			return nil, err
		}
	}
	return &heedful{Conn: conn, conns: c, address: address, epoch: epoch}, nil
}

func handshake(ctx context.Context, conn net.Conn, config *tls.Config, address string) (net.Conn, error) {
	config = config.Clone()
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // it is of no use
		return nil, fmt.Errorf("%w with %s: %w", errHandshake, address, err)
	}
	return secure, nil
}

func (c *connections) epoch(address string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epochs == nil {
		c.epochs = make(map[string]int)
	}
	c.epochs[address] += 0 // so that distrust knows of it
	return c.epochs[address]
}

// distrust has the connections to an address that were made until now replaced by new ones when they are next wanted;
// no address is all of them.
func (c *connections) distrust(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for known := range c.epochs {
		if address == "" || address == known {
			c.epochs[known]++
		}
	}
}

// heedful is a connection that says why the server closed it, and that fails its health check where it is not to be
// used again.
type heedful struct {
	net.Conn
	conns   *connections
	address string
	epoch   int
	refused error // set by the goroutine that uses the connection; the driver lets in one at a time
}

// Read hears what no command has asked for. A Redis at its client limit writes an error and closes: the driver takes that
// for an answer to its handshake, and all that comes out is its next, failed write. A port that speaks TLS says so in an
// alert.
func (c *heedful) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case bytes.HasPrefix(b[:n], []byte("-"+errClientLimit)):
		c.refused = errClientLimit
	case bytes.HasPrefix(b[:n], []byte{alertRecord, tlsMajor}):
		return 0, errSpeaksTLS
	case err != nil:
		c.conns.distrust(c.address) // the others lead to the same server
	}
	return n, err
}

// The first bytes of a TLS alert. No reply of Redis begins like that.
const (
	alertRecord = 21
	tlsMajor    = 3
)

func (c *heedful) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	c.conns.distrust(c.address)
	if c.refused == nil && !isTimeout(err) { // it was never read, or there is none
		_ = c.SetReadDeadline(time.Now().Add(handshakeTimeout))
		_, _ = c.Read(make([]byte, 512))
	}
	if c.refused != nil {
		return n, c.refused
	}
	return n, err
}

// SyscallConn is the driver's health check of a connection that it wants to use again.
func (c *heedful) SyscallConn() (syscall.RawConn, error) {
	if c.conns.epoch(c.address) != c.epoch {
		return nil, errDistrusted
	}
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return unseen{}, nil
}

// unseen is a connection that can't be looked at without reading from it, because it is TLS. It is taken for healthy.
type unseen struct{}

func (unseen) Control(func(uintptr)) error    { return nil }
func (unseen) Read(func(uintptr) bool) error  { return nil }
func (unseen) Write(func(uintptr) bool) error { return nil }

// refusal is an error reply to no command.
type refusal string

const errClientLimit refusal = "ERR max number of clients reached"

func (r refusal) Error() string { return string(r) }

// RedisError makes it a [redis.Error].
func (refusal) RedisError() {}
