package main

import (
	"fmt"
	"strings"
)

// verdict is one target of the issue, and what was measured.
type verdict struct {
	Target  string  `json:"target"`
	Bound   float64 `json:"bound"`
	AtLeast bool    `json:"at_least"` // else at most
	Got     float64 `json:"measured"`
	Unit    string  `json:"unit,omitempty"`
	Reached bool    `json:"reached"`
}

// judge holds what was measured against the targets. A target whose part was not measured has no verdict.
func judge(r *results) []verdict {
	var verdicts []verdict
	is := func(target string, got float64, atLeast bool, bound float64, unit string) {
		reached := got <= bound
		if atLeast {
			reached = got >= bound
		}
		verdicts = append(verdicts, verdict{Target: target, Bound: bound, AtLeast: atLeast, Got: got, Unit: unit, Reached: reached})
	}
	const atLeast, atMost = true, false
	if p := pairingOf(r.Peers, "lua"); p != nil {
		is("acquire + release against the Lua module: throughput", p.RateRatio, atLeast, 1, "×")
		is("acquire + release against the Lua module: p99 in the closed loop", p.P99Ratio, atMost, 1, "×")
		is("acquire + release against the Lua module: CPU a request", p.CPURatio, atMost, 1.25, "×")
	}
	if p := pairingOf(r.Rated, "lua"); p != nil {
		is("acquire + release against the Lua module: p99 at a steady rate", p.P99Ratio, atMost, 1, "×")
	}
	if p := pairingOf(r.Peers, "floor"); p != nil {
		is("acquire + release against a Go handler that answers 204: throughput", p.RateRatio, atLeast, 0.8, "×")
	}
	for _, target := range []struct {
		streams        int
		form           string
		redis, sidecar float64
	}{
		{45_000, single, 1, 12},
		{45_000, batches, 1, 1},
		{900_000, batches, 20, 25},
	} {
		if p := r.beatsOf(target.streams, target.form); p != nil {
			what := fmt.Sprintf("heartbeats of %s streams, %s", thousands(float64(p.Streams)), p.Form)
			is(what+": Redis", p.RedisCPU, atMost, target.redis, "% of a core")
			is(what+": streamcap", p.SidecarCPU, atMost, target.sidecar, "% of a core")
			is(what+": acquire p99 with and without", p.P99Ratio, atMost, 1.5, "×")
			is(what+": lost", p.Lost, atMost, 0, "")
			is(what+": offered and sent", over(p.Sent, p.Offered), atLeast, 0.95, "×")
		}
	}
	if highest := r.HighestResident(); highest > 0 {
		is("streamcap's memory with Redis, at its highest", highest/mebi, atMost, 64, "MiB")
	}
	if n := len(r.MemoryEmbedded); n > 1 {
		what := fmt.Sprintf("embedded store, %s slots: ", thousands(float64(r.MemoryEmbedded[n-1].Slots)))
		is(what+"live heap a slot", grown(r.MemoryEmbedded, func(p memoryPoint) float64 { return p.SidecarHeap }), atMost, 512, "bytes")
		is(what+"resident memory a slot", r.EmbeddedSlot(), atMost, 512, "bytes")
	}
	for _, d := range r.Datagrams {
		what := fmt.Sprintf("release datagrams (%s, up to %s/s): ", d.Load, thousands(d.Rate))
		is(what+"lost", d.Lost, atMost, 0, "")
		is(what+"dropped by the kernel", d.Dropped, atMost, 0, "")
	}
	return verdicts
}

func verdictTable(r *results) string {
	t := newTable("target", "bound", "measured", "")
	for _, v := range r.Verdicts {
		sign, word := "≤", "**not reached**"
		if v.AtLeast {
			sign = "≥"
		}
		if v.Reached {
			word = "reached"
		}
		t.row(v.Target, fmt.Sprintf("%s %v %s", sign, v.Bound, v.Unit), fmt.Sprintf("%s %s", short(v.Got), v.Unit), word)
	}
	return t.String()
}

// short writes three digits that count.
func short(value float64) string {
	switch {
	case value == 0:
		return "0"
	case value >= 1000:
		return thousands(value)
	case value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	case value >= 0.1:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.4f", value)
	}
}

// thousands writes 45000 as 45,000.
func thousands(value float64) string {
	digits := fmt.Sprintf("%.0f", value)
	var grouped strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			grouped.WriteByte(',')
		}
		grouped.WriteRune(digit)
	}
	return grouped.String()
}

// fine writes CPU seconds for 1,000 requests, of which a hundredth is much.
func fine(seconds float64) string { return fmt.Sprintf("%.4f", seconds) }
