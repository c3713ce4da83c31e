package slotstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"streamcap/slotstore/redistest"
)

func TestDialThatFailedTooLateIsNobodyElses(t *testing.T) {
	server := redistest.Start(t)
	options := RedisOptions{Network: "unix", Addresses: []string{server.Socket}}
	c := newClient(RoleAcquire, options, 100*time.Millisecond)
	t.Cleanup(func() { c.Close() })
	const hasty = 4 // more than the driver tries again
	wall, dials := make(chan struct{}), atomic.Int64{}
	c.conns.dialer.ControlContext = func(context.Context, string, string, syscall.RawConn) error {
		if dials.Add(1) > hasty {
			return nil
		}
		<-wall
		return errors.New("dialled into the wall")
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var calls sync.WaitGroup
	for range hasty {
		calls.Go(func() {
			if err := c.Ping(soon).Err(); err == nil {
				t.Error("the wall answers")
			}
		})
	}
	calls.Wait()
	close(wall)
	for deadline := time.Now().Add(5 * time.Second); c.PoolStats().IdleConns < hasty; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the driver has not kept what nobody waits for")
		}
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("a call after the wall has gone: %v", err)
	}
}
