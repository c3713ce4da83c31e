// Package leanhttp answers what nginx's auth_request asks with few system calls, and leaves all else to net/http.
//
// A request that arrives in one read, has no body and nothing unusual about it is understood and answered where it was
// read: net/http watches each connection from a second goroutine while its handler runs, and with the system calls for that
// a request costs more than twice as much (BenchmarkRequest). The first request of a connection that is any different goes to net/http with all
// that was read, and the connection stays there. So what is not surely understood here is understood, or refused, by
// net/http.
package leanhttp

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is net/http's, which serves all that this one does not. Its Handler, ConnContext and timeouts are those of both.
type Server struct {
	*http.Server

	// Reads are the request headers that the handler looks at, in canonical form. Of a request that net/http does not
	// serve it sees no others, and the context does not end when the client leaves.
	Reads []string

	mu      sync.Mutex
	conns   map[*conn]struct{} // those that are not net/http's
	stopped bool
}

// Serve is [http.Server.Serve].
func (s *Server) Serve(l net.Listener) error {
	s.RegisterOnShutdown(s.stop)
	return s.Server.Serve(listener{l, s})
}

// Shutdown is [http.Server.Shutdown].
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.Server.Shutdown(ctx)
	for err == nil && s.busy() {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return err
}

// Close is [http.Server.Close]: requests under way are cut off.
func (s *Server) Close() error {
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Conn.Close() // the client may have been quicker
	}
	s.mu.Unlock()
	return s.Server.Close()
}

func (s *Server) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

// stop closes the connections that are idle. Each of the others closes when its request is answered.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c := range s.conns {
		_ = c.Close() // the client may have been quicker
	}
}

func (s *Server) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = make(map[*conn]struct{})
	}
	s.conns[c] = struct{}{}
	if s.stopped {
		_ = c.Close() // likewise
	}
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// listener hands net/http connections that serve themselves while it waits for a first request.
type listener struct {
	net.Listener

	server *Server
}

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := newConn(l.server, accepted)
	l.server.add(c)
	return c, nil
}
