package slotstore_test

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// request is an acquire of one of many users, with provenance as nginx.conf.example sends it.
func request(n int) slotstore.Request {
	return slotstore.Request{
		ID: id("user-"+strconv.Itoa(n), fmt.Sprintf("%032x", n)), Limit: 3, Attempt: "3w5e11264sgsf",
		Provenance: slotstore.Provenance{
			IP: fmt.Sprintf("203.0.113.%d", n%256), URI: fmt.Sprintf("/api/chat/%d", n%1000),
			UserAgent: fmt.Sprintf("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0 Safari/537.36", n%100),
		},
	}
}

func TestMemoryTakesFewBytesASlot(t *testing.T) {
	const slots, most = 50_000, 300
	live := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	store := slotstore.NewMemory(lifetimes, slotstore.Events{}, 0)
	before := live()
	for n := range slots {
		if _, err := store.Acquire(t.Context(), request(n)); err != nil {
			t.Fatal(err)
		}
	}
	got := (live() - before) / slots
	t.Logf("%d bytes a slot", got)
	if got > most {
		t.Errorf("%d bytes a slot, at most %d are let: the garbage of a million must fit into 512 MB with them", got, most)
	}
	runtime.KeepAlive(store)
}

// BenchmarkStore is what many callers at once wait for each operation on either store.
func BenchmarkStore(b *testing.B) {
	const users = 100_000
	requests := make([]slotstore.Request, users)
	ids := make([]slotstore.ID, users+500)
	for n := range ids {
		ids[n] = request(n % users).ID
	}
	for n := range requests {
		requests[n] = request(n)
	}
	for name, store := range map[string]slotstore.Store{
		"memory": slotstore.NewMemory(lifetimes, slotstore.Events{}, 0),
		"redis":  newRedis(b, redistest.Start(b), slotstore.Events{}),
	} {
		each := func(op string, do func(n int) error) {
			b.Run(name+"/"+op, func(b *testing.B) {
				var next atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := do(int(next.Add(1)) % users); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
		each("acquire", func(n int) error { _, err := store.Acquire(b.Context(), requests[n]); return err })
		each("heartbeat", func(n int) error { _, err := store.Heartbeat(b.Context(), ids[n]); return err })
		each("heartbeat of 500", func(n int) error {
			_, err := store.Heartbeat(b.Context(), ids[n:n+500]...)
			return err
		})
		each("release", func(n int) error { _, err := store.Release(b.Context(), ids[n]); return err })
	}
}
