package main

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// serveFloor is a Go program that answers every acquire with 204 and knows nothing: no sidecar that is written in Go, with
// this HTTP server, can be quicker. It is a process of its own, so that its CPU is its own.
func serveFloor(ctx context.Context, address string) error {
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // then ListenAndServe says that it was closed
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
