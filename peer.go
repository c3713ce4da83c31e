package main

import (
	"context"
	"net"
	"net/http"
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
	conn, ok := r.Context().Value(connKey{}).(interface{ Left() bool })
	return r.Context().Err() != nil || ok && conn.Left()
}
