package leanhttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"streamcap/rawconn"
)

// conn is a connection that answers requests inside Read, for as long as it understands them.
type conn struct {
	*rawconn.Conn

	server *Server
	state  atomic.Int32

	// What is below belongs to the goroutine in Read, and is used again for each request.

	request  *http.Request
	values   []string // of the headers that the handler reads, in the order of Server.Reads
	hosts    int      // that it names
	response response
	deadline time.Time // that is set for an idle connection
}

// The states of a connection.
const (
	idle    = iota
	active  // a request is being answered
	closing // closed, or about to be when the request is answered
	over    // net/http's
)

func newConn(server *Server, accepted net.Conn) *conn {
	c := &conn{Conn: rawconn.New(accepted), server: server, values: make([]string, len(server.Reads))}
	ctx := context.Background()
	if server.ConnContext != nil {
		ctx = server.ConnContext(ctx, c)
	}
	c.request = (&http.Request{
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, URL: new(url.URL), Header: make(http.Header, len(server.Reads)),
		Body: http.NoBody, RemoteAddr: accepted.RemoteAddr().String(),
	}).WithContext(ctx)
	c.response.header = make(http.Header)
	return c
}

// Read returns what this package does not understand, and all that comes after it.
func (c *conn) Read(p []byte) (int, error) {
	if c.state.Load() == over {
		return c.Conn.Read(p)
	}
	for {
		c.wait()
		n, err := c.Conn.Read(p)
		if err != nil {
			c.leave(idle)
			return n, err
		}
		if !c.understand(p[:n]) {
			if !c.leave(idle) {
				return 0, io.EOF
			}
			return n, c.SetReadDeadline(after(c.server.ReadHeaderTimeout))
		}
		if err := c.serve(); err != nil {
			return 0, err
		}
	}
}

// wait sets the idle time anew, where that makes a difference.
func (c *conn) wait() {
	if deadline := after(c.server.IdleTimeout); deadline.Sub(c.deadline) > time.Second || deadline.IsZero() {
		c.deadline = deadline
		_ = c.SetReadDeadline(deadline) // what is wrong shows in the read
	}
}

// after is the deadline of a timeout; 0 is none.
func after(timeout time.Duration) (deadline time.Time) {
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	return deadline
}

// leave makes the connection net/http's, unless it was closed.
func (c *conn) leave(from int32) bool {
	c.server.remove(c)
	return c.state.CompareAndSwap(from, over)
}

// serve answers the request. An error ends the connection, and so does a panic, of which net/http tells.
func (c *conn) serve() error {
	if !c.state.CompareAndSwap(idle, active) {
		c.leave(closing)
		return io.EOF // too late for it
	}
	answered := false
	defer func() {
		if !answered {
			c.leave(active)
			_ = c.Conn.Close() // net/http's Close may have come, and left it to us
		}
	}()
	c.response.reset()
	c.server.Handler.ServeHTTP(&c.response, c.request)
	_, err := c.Write(c.response.text(c.state.Load() == closing))
	answered = err == nil && c.state.CompareAndSwap(active, idle)
	if !answered {
		err = errors.Join(io.EOF, err)
	}
	return err
}

// Close lets a request under way be answered first. At a stop it comes twice: net/http takes a connection whose first
// request it waits for to be idle after 5 s.
func (c *conn) Close() error {
	switch c.state.Swap(closing) {
	case active, closing:
		return nil
	}
	return c.Conn.Close()
}
