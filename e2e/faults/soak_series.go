package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// series is one figure over a soak, taken in the calm between troubles.
type series struct {
	Name   string    `json:"name"`
	At     []float64 `json:"at_seconds"`
	Values []float64 `json:"values"`

	// The medians of the first and the last third, and the most that the last may be: growth is what lasts.
	First float64 `json:"median_of_first_third"`
	Last  float64 `json:"median_of_last_third"`
	Most  float64 `json:"promised_at_most"`
	OK    bool    `json:"ok"`

	slack float64 // beside a tenth
	read  func(*reading) float64
}

// reading is all that is read at one time.
type reading struct {
	census

	connections float64
	sidecars    []state
}

// state is what a sidecar has in use.
type state struct {
	goroutines  float64
	descriptors float64 // by its own /metrics
	files       int     // open ones besides connections to Redis
	mebibytes   float64
}

// addSeries says what is read, and how much it may differ. When the machine stalls, everybody opens connections, which
// pools then keep; a leak of one a second is a thousand in half an hour.
func (k *soaking) addSeries() {
	add := func(name string, slack float64, read func(*reading) float64) {
		k.series = append(k.series, &series{Name: name, slack: slack, read: read})
	}
	add("slots live in Redis", 20, func(r *reading) float64 { return float64(r.live) })
	add("slots in Redis, expired ones as well", 20, func(r *reading) float64 { return float64(r.slots) })
	add("keys of users in Redis", 40, func(r *reading) float64 { return float64(r.keys) })
	add("connections to Redis", 50, func(r *reading) float64 { return r.connections })
	for i, which := range []string{"the restarted sidecar", "the other sidecar"} {
		add("RSS of "+which+", MiB", 4, func(r *reading) float64 { return r.sidecars[i].mebibytes })
		add("goroutines of "+which, 50, func(r *reading) float64 { return r.sidecars[i].goroutines })
		add("file descriptors of "+which, 50, func(r *reading) float64 { return r.sidecars[i].descriptors })
	}
}

// calm waits, and takes samples meanwhile: a second after a trouble, and then no oftener than every few seconds.
func (k *soaking) calm(ctx context.Context, d time.Duration) {
	interval := max(time.Second, k.hold/600)
	pause(ctx, min(time.Second, d))
	for end := time.Now().Add(d - time.Second); ctx.Err() == nil && time.Now().Before(end); {
		if time.Since(k.sampled) >= interval {
			k.sampled = time.Now()
			k.sample(ctx)
		}
		pause(ctx, min(interval, time.Until(end)))
	}
}

func (k *soaking) sample(ctx context.Context) {
	var r reading
	var err error
	if r.census, err = k.redis.count(ctx); err == nil {
		r.connections, err = k.redis.clients(ctx)
	}
	for _, w := range k.stacks {
		if err == nil {
			var s state
			s, err = stateOf(w.sidecar)
			r.sidecars = append(r.sidecars, s)
		}
	}
	if err != nil {
		k.skipped++
		return
	}
	k.over += r.over
	for _, s := range k.series {
		s.At = append(s.At, time.Since(k.began).Seconds())
		s.Values = append(s.Values, s.read(&r))
	}
}

// clients is how many connections the server has.
func (r *redisServer) clients(ctx context.Context) (float64, error) {
	info, err := r.client.Info(ctx, "clients").Result()
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(info, "connected_clients:")
	number, _, _ := strings.Cut(after, "\r\n")
	return strconv.ParseFloat(number, 64)
}

// stateOf asks the sidecar and the kernel.
func stateOf(s *sidecar) (state state, err error) {
	kB, err := s.status("VmRSS")
	if err != nil {
		return state, err
	}
	state.mebibytes = float64(kB) / 1024
	if state.goroutines, err = s.metric("go_goroutines"); err != nil {
		return state, err
	}
	if state.descriptors, err = s.metric("process_open_fds"); err != nil {
		return state, err
	}
	state.files, err = s.files(s.storePort())
	return state, err
}

// storePort is where its Redis listens.
func (s *sidecar) storePort() string {
	for _, setting := range s.settings {
		if address, ok := strings.CutPrefix(setting, "REDIS_URL=redis://"); ok {
			_, port := splitAddress(address)
			return port
		}
	}
	return "0"
}

// files counts what the process has open, without its connections to this port.
func (p *process) files(port string) (int, error) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0, err
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	theirs := make(map[string]bool) // sockets
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 9 && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", number)) {
			theirs["socket:["+fields[9]+"]"] = true
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", p.pid())
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, entry := range entries {
		if target, err := os.Readlink(dir + "/" + entry.Name()); err == nil && !theirs[target] {
			count++
		}
	}
	return count, nil
}

// closeSeries says which of them grew.
func (k *soaking) closeSeries(out *result) {
	const enough = 9 // samples, three in a third
	if n := len(k.series[0].Values); n < enough || k.skipped > n/10 {
		out.broken("%d samples taken, %d skipped: too few to see anything grow", n, k.skipped)
		return
	}
	for _, s := range k.series {
		third := len(s.Values) / 3
		s.First, s.Last = median(s.Values[:third]), median(s.Values[len(s.Values)-third:])
		s.Most = s.First*1.1 + s.slack
		s.OK = s.Last <= s.Most
		if !s.OK {
			out.broken("%s grew from %.0f to %.0f", s.Name, s.First, s.Last)
		}
		out.Series = append(out.Series, *s)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func printSeries(w io.Writer, results []result) {
	lines := [][]string{{
		"over the soak", "start", "quarter", "half", "three quarters", "end", "max", "median of the first third", "of the last", "promised", "",
	}}
	for _, r := range results {
		for _, s := range r.Series {
			line := []string{s.Name}
			last := len(s.Values) - 1
			for _, at := range []int{0, last / 4, last / 2, last * 3 / 4, last} {
				line = append(line, fmt.Sprintf("%.0f", s.Values[at]))
			}
			state := "flat"
			if !s.OK {
				state = "BROKEN"
			}
			lines = append(lines, append(line, fmt.Sprintf("%.0f", slices.Max(s.Values)), fmt.Sprintf("%.0f", s.First),
				fmt.Sprintf("%.0f", s.Last), fmt.Sprintf("<= %.0f: a tenth and %.0f more", s.Most, s.slack), state))
		}
	}
	if len(lines) > 1 {
		printTable(w, lines)
	}
}
