package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"time"
)

// memoryPoint is what so many live slots take.
type memoryPoint struct {
	Slots           int     `json:"slots"`
	SidecarResident float64 `json:"sidecar_resident_bytes"`
	SidecarHeap     float64 `json:"sidecar_live_heap_bytes,omitempty"` // embedded store: what the last collection left
	RedisUsed       float64 `json:"redis_used_bytes,omitempty"`
	RedisResident   float64 `json:"redis_resident_bytes,omitempty"`
}

// measureMemory fills both stores in steps.
func measureMemory(ctx context.Context, b *bench) error {
	steps, step := 10, 100_000
	if b.opts.short {
		steps = 2
	}
	var err error
	if b.results.MemoryRedis, err = memoryOf(ctx, b, steps, step, true); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if b.results.MemoryEmbedded, err = memoryOf(ctx, b, steps, step, false); err != nil {
		return fmt.Errorf("embedded store: %w", err)
	}
	return nil
}

func memoryOf(ctx context.Context, b *bench, steps, step int, withRedis bool) ([]memoryPoint, error) {
	w, err := newWorld(b.opts)
	if err != nil {
		return nil, err
	}
	defer w.end()
	if withRedis {
		if err = w.startRedis(ctx); err != nil {
			return nil, err
		}
	}
	if err = w.startSidecar(ctx); err != nil {
		return nil, err
	}
	var points []memoryPoint
	for i := range steps + 1 {
		from, to := max(0, i-1)*step, i*step
		if withRedis {
			err = w.fillAndBeat(ctx, from, to)
		} else {
			err = w.acquireAll(ctx, from, to)
		}
		if err != nil {
			return points, err
		}
		point, err := w.memoryNow(ctx, to)
		if err != nil {
			return points, err
		}
		b.logf("  %d slots: sidecar %.1f MiB (live heap %.1f), redis %.1f MiB", to,
			point.SidecarResident/mebi, point.SidecarHeap/mebi, point.RedisUsed/mebi)
		points = append(points, point)
	}
	return points, nil
}

const mebi = 1 << 20

// fillAndBeat has the sidecar work on what was filled, too: each new stream sends one heartbeat, in batches.
func (w *world) fillAndBeat(ctx context.Context, from, to int) error {
	if err := w.fill(ctx, from, to, streamOf); err != nil || from == to {
		return err
	}
	loop := openLoop{
		address: w.sidecar.listen, connections: 2, rate: 100, wanted: 200,
		length:  time.Duration(to-from) * time.Second / (100 * batchSize),
		request: func(buffer []byte, n int) []byte { return batchRequest(buffer, streamOf, from+n*batchSize) },
	}
	_, err := loop.run(ctx)
	return err
}

// acquireAll takes slots in the embedded store: through HTTP, as nginx does, but pipelined, so that a million take less
// than a minute.
func (w *world) acquireAll(ctx context.Context, from, to int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.sidecar.listen)
	if err != nil {
		return err
	}
	c := &httpConn{address: w.sidecar.listen, conn: conn, reader: bufio.NewReader(conn)}
	defer c.close()
	var batch []byte
	for n := from; n < to && ctx.Err() == nil; {
		begin, end := n, min(n+50, to)
		batch = batch[:0]
		for ; n < end; n++ {
			batch = streamOf(n).acquireRequest(batch)
		}
		if err := c.send(ctx, batch); err != nil {
			return err
		}
		for range end - begin {
			status, err := c.status()
			if err != nil {
				return err
			}
			if status != 204 {
				return fmt.Errorf("an acquire was answered with %d", status)
			}
		}
	}
	return ctx.Err()
}

func (w *world) memoryNow(ctx context.Context, slots int) (memoryPoint, error) {
	point := memoryPoint{Slots: slots}
	var err error
	if w.redis != nil {
		if point.RedisUsed, point.RedisResident, err = w.redis.used(ctx); err != nil {
			return point, err
		}
	} else {
		var values map[string]float64
		if values, err = w.sidecar.metrics(ctx); err != nil {
			return point, err
		}
		// The collector runs again when the heap has doubled (GOGC=100), so half of that is what the last run left.
		point.SidecarHeap = values["go_memstats_next_gc_bytes"] / 2
	}
	point.SidecarResident, err = w.sidecar.memory("VmRSS")
	return point, err
}
