package main

import (
	"fmt"
	"slices"
	"strings"
)

// markdown is results.md. It shows the charts of these names.
func (r *results) markdown(charts []string) string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "# Figures\n\nWritten by `%s` on %s in %.0f minutes; do not edit. [results.json](results.json) has every run.\n\n",
		r.Command, r.Began.Format("2006-01-02 15:04 UTC"), r.Seconds/60)
	fmt.Fprintf(&b, "%s, %d cores; Linux %s; nginx %s, Redis %s, Lua module %s, wrk %s, %s, streamcap %s. Load averages before: %s.\n",
		m.CPU, m.Cores, m.Kernel, m.Nginx, m.Redis, m.Lua, m.Wrk, m.Go, m.Streamcap, m.Load)
	b.WriteString("Load, nginx, streamcap, Redis and the backend share those cores, so figures compare; they are no capacity of a server.\n")
	if r.Short {
		b.WriteString("\n**Short form: these figures show that bench works, no more.**\n")
	}
	for _, failed := range r.Failed {
		fmt.Fprintf(&b, "\n**Not measured: %s**\n", failed)
	}
	fmt.Fprintf(&b, "\n## Targets\n\n%s", verdictTable(r))
	section := func(title string, chart []string, body string) {
		if body == "" {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, name := range chart {
			if slices.Contains(charts, name) {
				fmt.Fprintf(&b, "![%s](%s.svg)\n\n", title, name)
			}
		}
		b.WriteString(body)
	}
	section("Acquire and release through nginx, as fast as it goes", []string{"throughput", "p99", "cpu"}, closedTables(r.Peers))
	section("The same at a steady rate", []string{"steady"}, ratedTables(r.Rated))
	section("End-of-request lines", nil, datagramTable(r.Datagrams))
	section("Heartbeats", []string{"heartbeats", "heartbeats-p99"}, r.heartbeatTable())
	section("Memory", []string{"memory-redis", "memory-embedded"}, r.memoryTable())
	section("Growth", []string{"growth-slots", "growth-users"}, r.growthTable())
	return b.String()
}

func closedTables(pairings []pairing) string {
	if len(pairings) == 0 {
		return ""
	}
	return fmt.Sprintf("%d connections, %s users, streams that end at once; medians of %d paired runs in turn, ratios within pairs. "+
		"Uncounted (failed open) and not released are the most of one run.\n\n",
		streamConnections, thousands(streamUsers), len(pairings[0].Ours)) + pairTables(pairings)
}

func ratedTables(pairings []pairing) string {
	if len(pairings) == 0 {
		return ""
	}
	return "Half of what the slower of the two managed above, offered at fixed times; latency from when each was due.\n\n" + pairTables(pairings)
}

func pairTables(pairings []pairing) string {
	t := newTable("", "requests/s", "p50 ms", "p99 ms", "CPU s / 1,000: nginx", "sidecar", "Redis", "total", "(backend)", "uncounted", "not released")
	row := func(name string, l load) {
		t.row(name, thousands(l.Rate), short(l.P50), short(l.P99),
			fine(l.CPU.Nginx), fine(l.CPU.Sidecar), fine(l.CPU.Redis), fine(l.CPU.Total), fine(l.CPU.Backend),
			thousands(l.Uncounted), thousands(l.Left))
	}
	repeated := 0
	for _, p := range pairings {
		repeated += p.Repeated
		row("streamcap", p.OursMedian)
		row(p.Title, p.TheirsMedian)
		t.row("*ratio*", short(p.RateRatio), short(p.P50Ratio), short(p.P99Ratio), "", "", "", short(p.CPURatio), "", "", "")
	}
	if repeated > 0 {
		fmt.Fprintf(t, "\nDone again, because more than one stream in a hundred was not counted: %d runs.\n", repeated)
	}
	return t.String()
}

func datagramTable(all []datagrams) string {
	if len(all) == 0 {
		return ""
	}
	t := newTable("load", "highest rate/s", "expected", "seen", "lost", "dropped by the kernel", "shed by the queue")
	for _, d := range all {
		t.row(d.Load, thousands(d.Rate), thousands(d.Expected), thousands(d.Seen), thousands(d.Lost), thousands(d.Dropped), thousands(d.Shed))
	}
	return t.String()
}

func (r *results) heartbeatTable() string {
	if len(r.Heartbeats) == 0 {
		return ""
	}
	t := newTable("live streams", "form", "offered/s", "sent/s", "Redis % of a core", "streamcap %", "script runs/s", "writes/s",
		"lost", "of them answered 202", "acquire p99 ms without", "with", "ratio", "streamcap MiB")
	if r.Idle != nil {
		t.row("(no heartbeats)", "", "0", "0", short(r.Idle.RedisCPU), short(r.Idle.SidecarCPU), "", "", "", "", "", "", "", "")
	}
	for _, p := range r.Heartbeats {
		t.row(thousands(float64(p.Streams)), p.Form, thousands(p.Offered), thousands(p.Sent), short(p.RedisCPU), short(p.SidecarCPU),
			thousands(p.Commands), thousands(p.Writes), thousands(p.Lost), thousands(p.Unrecorded), short(p.P99Without), short(p.P99With), short(p.P99Ratio),
			short(p.Resident/mebi))
	}
	return fmt.Sprintf("Each stream sends one every %v, evenly spread; batches hold %d. CPU is that of heartbeats alone; then %d acquires a second "+
		"come straight to streamcap, in turn with and without heartbeats. Lost are heartbeats that were sent and not recorded.\n\n",
		heartbeatInterval, batchSize, acquireRate) + t.String()
}

func (r *results) memoryTable() string {
	if len(r.MemoryRedis)+len(r.MemoryEmbedded) == 0 {
		return ""
	}
	t := newTable("live slots", "store", "streamcap resident MiB", "its live heap MiB", "Redis used MiB", "Redis resident MiB", "bytes a slot")
	rows := func(store string, points []memoryPoint) {
		for _, p := range points {
			grown := p.RedisUsed - points[0].RedisUsed
			if p.RedisUsed == 0 {
				grown = p.SidecarResident - points[0].SidecarResident
			}
			t.row(thousands(float64(p.Slots)), store, short(p.SidecarResident/mebi), short(p.SidecarHeap/mebi),
				short(p.RedisUsed/mebi), short(p.RedisResident/mebi), short(over(grown, float64(p.Slots))))
		}
	}
	rows("Redis", r.MemoryRedis)
	rows("embedded", r.MemoryEmbedded)
	return "Slots with an address, a path and a browser's name. Bytes a slot are Redis's used memory, or the resident memory of " +
		"streamcap with the embedded store.\n\n" + t.String()
}

func (r *results) growthTable() string {
	points := slices.Concat(r.GrowthSlots, r.GrowthUsers)
	if len(points) == 0 {
		return ""
	}
	t := newTable("users", "slots of each", "µs in Redis, acquire and release", "acquire p50 ms", "p99 ms")
	for _, p := range points {
		t.row(thousands(float64(p.Users)), thousands(float64(p.SlotsPerUser)), short(p.RedisMicros), short(p.P50), short(p.P99))
	}
	return "1,000 acquires and releases a second, straight to streamcap.\n\n" + t.String()
}
