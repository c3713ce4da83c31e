package main

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"text/template"
)

//go:embed capacity.md.tmpl
var guideText string

// guide is docs/capacity.md: what the figures mean to who plans with them. It needs all of them.
func (r *results) guide() (string, error) {
	text, err := template.New("guide").Funcs(template.FuncMap{
		"peers":   func() string { return guidePeers(r.Peers) },
		"beats":   func() string { return guideBeats(r.Heartbeats) },
		"beat":    r.beatsOf,
		"whole":   thousands,
		"percent": percent,
		"MiB":     func(bytes float64) string { return fmt.Sprintf("%.0f MiB", bytes/mebi) },
	}).Parse(guideText)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = text.Execute(&b, r)
	return b.String(), err
}

// writeGuide leaves the guide as it is where a part could not be measured.
func (r *results) writeGuide(path string) error {
	if len(r.Failed) > 0 {
		return nil
	}
	text, err := r.guide()
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // it is published
}

func percent(figure float64) string { return fmt.Sprintf("%.1f %%", figure) }

func guidePeers(pairings []pairing) string {
	t := newTable("", "a second", "p99", "CPU s / 1,000")
	for _, p := range pairings {
		t.row("streamcap : "+p.Title,
			fmt.Sprintf("%s : %s = %.2f ×", thousands(p.OursMedian.Rate), thousands(p.TheirsMedian.Rate), p.RateRatio),
			fmt.Sprintf("%.1f : %.1f ms = %.2f ×", p.OursMedian.P99, p.TheirsMedian.P99, p.P99Ratio),
			fmt.Sprintf("%.3f : %.3f = %.2f ×", p.OursMedian.CPU.Total, p.TheirsMedian.CPU.Total, p.CPURatio))
	}
	return t.String()
}

func guideBeats(points []beatPoint) string {
	t := newTable("live streams", "heartbeats a second", "form", "Redis", "sidecar", "acquire p99 with / without")
	for _, p := range points {
		t.row(thousands(float64(p.Streams)), thousands(p.Sent), p.Form, percent(p.RedisCPU), percent(p.SidecarCPU),
			fmt.Sprintf("%.2f / %.2f ms", p.P99With, p.P99Without))
	}
	return t.String()
}

// HighestResident is the most memory that streamcap ever had with Redis, in bytes.
func (r *results) HighestResident() float64 {
	return max(most(r.Heartbeats, func(p beatPoint) float64 { return p.Highest }),
		most(r.MemoryRedis, func(p memoryPoint) float64 { return p.SidecarResident }))
}

// MostStreams is the highest number of live slots that were kept in Redis.
func (r *results) MostStreams() float64 {
	return max(most(r.Heartbeats, func(p beatPoint) float64 { return float64(p.Streams) }),
		most(r.MemoryRedis, func(p memoryPoint) float64 { return float64(p.Slots) }))
}

// RedisSlot is the bytes of one slot in Redis, over all that were filled in.
func (r *results) RedisSlot() float64 {
	return grown(r.MemoryRedis, func(p memoryPoint) float64 { return p.RedisUsed })
}

// EmbeddedSlot is the same of the embedded store, in resident memory.
func (r *results) EmbeddedSlot() float64 {
	return grown(r.MemoryEmbedded, func(p memoryPoint) float64 { return p.SidecarResident })
}

// grown is how much of something each slot has added; 0 without two points.
func grown(points []memoryPoint, of func(memoryPoint) float64) float64 {
	if len(points) < 2 {
		return 0
	}
	first, last := points[0], points[len(points)-1]
	return over(of(last)-of(first), float64(last.Slots-first.Slots))
}

// LinesWithoutLoss is the highest rate of end-of-request lines that lost none, a second.
func (r *results) LinesWithoutLoss() float64 {
	return most(r.Datagrams, func(d datagrams) float64 {
		if d.Lost+d.Dropped > 0 {
			return 0
		}
		return d.Rate
	})
}
