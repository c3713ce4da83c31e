package main

import (
	"context"
	"net"
	"net/http"
	"syscall"
)

// connKey is where a request's context holds its connection.
type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// clientLeft says whether the client has hung up, or closed its half of the connection, before it was answered. net/http
// ends the request's context for that, but only once its own reader has run: on a busy machine an answer overtakes it.
// So the socket itself is asked. Of a client that announced a body neither knows.
func clientLeft(r *http.Request) bool {
	if r.Context().Err() != nil {
		return true
	}
	conn, ok := r.Context().Value(connKey{}).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	left := false
	err = raw.Control(func(fd uintptr) {
		n, _, recvErr := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		left = recvErr == nil && n == 0 || recvErr == syscall.ECONNRESET
	})
	return left || err != nil
}
