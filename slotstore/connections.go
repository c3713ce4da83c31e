package slotstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"streamcap/rawconn"
)

// handshakeTimeout is for TLS alone. It ends before the first self-test does, which then can say what is wrong.
const handshakeTimeout = 800 * time.Millisecond

// keepAlive notices within a minute that the peer is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3} //nolint:gochecknoglobals // a constant

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

// unconnected is a connection that could not be made, and says so to the first who uses it. Where nobody waits for it any
// more the pool keeps it, and looks at it before it hands it to a later call: it looks broken, and is left out.
type unconnected struct{ err error }

func (c unconnected) SyscallConn() (syscall.RawConn, error) { return nil, c.err }

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
	conn = rawconn.New(conn)
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
