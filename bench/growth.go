package main

import (
	"context"
	"fmt"
	"time"
)

// growthPoint is what an acquire takes where so many users hold so many slots each.
type growthPoint struct {
	Users        int     `json:"users"`
	SlotsPerUser int     `json:"slots_per_user"`
	RedisMicros  float64 `json:"redis_us_acquire_and_release"`
	P50          float64 `json:"acquire_p50_ms"`
	P99          float64 `json:"acquire_p99_ms"`
}

// measureGrowth looks at both directions in which it could get slower.
func measureGrowth(ctx context.Context, b *bench) error {
	slots, users := []int{1, 10, 100, 1000, 10_000}, []int{10, 100, 1000, 10_000, 100_000, 1_000_000}
	if b.opts.short {
		slots, users = slots[:4], users[:4]
	}
	const heavyUsers = 10
	var err error
	b.results.GrowthSlots, err = growth(ctx, b, slots, func(slots int) growthPoint {
		return growthPoint{Users: heavyUsers, SlotsPerUser: slots}
	}, func(n int) stream { return stream{user: n % heavyUsers, request: uint64(n)} }) //nolint:gosec // n counts from 0
	if err != nil {
		return fmt.Errorf("slots per user: %w", err)
	}
	b.results.GrowthUsers, err = growth(ctx, b, users, func(users int) growthPoint {
		return growthPoint{Users: users, SlotsPerUser: 1}
	}, func(n int) stream { return stream{user: n, request: uint64(n)} }) //nolint:gosec // likewise
	if err != nil {
		return fmt.Errorf("users: %w", err)
	}
	return nil
}

// growth fills Redis step by step; of is the n-th slot.
func growth(ctx context.Context, b *bench, steps []int, at func(int) growthPoint, of func(int) stream) ([]growthPoint, error) {
	w, err := newWorld(b.opts)
	if err != nil {
		return nil, err
	}
	defer w.end()
	if err = w.startRedis(ctx); err != nil {
		return nil, err
	}
	if err = w.startSidecar(ctx); err != nil {
		return nil, err
	}
	if _, err = w.acquireAmong(ctx, 10); err != nil { // connections and scripts are there
		return nil, err
	}
	var points []growthPoint
	filled := 0
	for _, step := range steps {
		point := at(step)
		total := point.Users * point.SlotsPerUser
		if err := w.fill(ctx, filled, total, of); err != nil {
			return points, err
		}
		filled = total
		var seen timings
		usage, err := w.watch(ctx, func() error {
			var err error
			seen, err = w.acquireAmong(ctx, point.Users)
			return err
		})
		if err != nil {
			return points, err
		}
		point.RedisMicros = over(usage.redisMicros, float64(len(seen.latencies)))
		point.P50, point.P99 = quantile(seen.latencies, 0.5), quantile(seen.latencies, 0.99)
		b.logf("  %d users with %d slots: %.0f us in redis, acquire p50 %.2f ms p99 %.2f ms",
			point.Users, point.SlotsPerUser, point.RedisMicros, point.P50, point.P99)
		points = append(points, point)
	}
	return points, nil
}

// acquireAmong takes one more slot of users who hold some, and releases it, at a rate that keeps nobody busy.
func (w *world) acquireAmong(ctx context.Context, users int) (timings, error) {
	const stride = 7_368_787                                                                         // a prime: users come in no order
	of := func(n int) stream { return stream{user: n * stride % users, request: 1<<40 + uint64(n)} } //nolint:gosec // n counts from 0
	loop := openLoop{
		address: w.sidecar.listen, connections: 8, rate: 1000, length: 3 * time.Second, wanted: 204,
		request: func(buffer []byte, n int) []byte { return of(n).acquireRequest(buffer) },
		after:   func(n int) []byte { return of(n).releaseRequest(nil) },
	}
	seen, err := loop.run(ctx)
	if err == nil && seen.unwanted > 0 {
		err = fmt.Errorf("%d of %d acquires were not answered with 204", seen.unwanted, len(seen.latencies))
	}
	return seen, err
}
