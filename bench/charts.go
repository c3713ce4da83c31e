package main

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// chart is one picture, as SVG on white, which reads on a dark page, too.
type chart struct {
	name string
	svg  []byte
}

// series is a line, or the bars of one colour.
type series struct {
	title  string
	points plotter.XYs // of bars the Y alone
	dashed bool        // a bound
}

// palette tells colours apart for the colour-blind, too (Okabe and Ito).
func palette(i int) color.Color {
	return []color.Color{
		color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}, color.RGBA{R: 0xe6, G: 0x9f, A: 0xff},
		color.RGBA{G: 0x9e, B: 0x73, A: 0xff}, color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	}[i%4]
}

// charts draws what was measured.
func (r *results) charts() ([]chart, error) {
	var all []chart
	var first error
	add := func(name string, p *plot.Plot, err error) {
		var svg []byte
		if err == nil {
			svg, err = drawn(p)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("chart %s: %w", name, err)
		}
		all = append(all, chart{name, svg})
	}
	if len(r.Peers) > 0 {
		names, loads := beside(r.Peers)
		p, err := bars("Streams started and ended through nginx", "requests/s", names,
			barsOf("", loads, func(l load) float64 { return l.Rate }))
		add("throughput", p, err)
		p, err = bars("Latency in the closed loop", "ms", names,
			barsOf("p50", loads, func(l load) float64 { return l.P50 }), barsOf("p99", loads, func(l load) float64 { return l.P99 }))
		add("p99", p, err)
		p, err = bars("CPU seconds for 1,000 requests", "s", names,
			barsOf("nginx", loads, func(l load) float64 { return l.CPU.Nginx }),
			barsOf("sidecar", loads, func(l load) float64 { return l.CPU.Sidecar }),
			barsOf("Redis", loads, func(l load) float64 { return l.CPU.Redis }))
		add("cpu", p, err)
	}
	if len(r.Rated) > 0 {
		names, loads := beside(r.Rated)
		p, err := bars("Latency at a steady rate", "ms", names,
			barsOf("p50", loads, func(l load) float64 { return l.P50 }), barsOf("p99", loads, func(l load) float64 { return l.P99 }))
		add("steady", p, err)
	}
	if len(r.Heartbeats) > 0 {
		p, err := lines("CPU of heartbeats", "heartbeats/s", "% of a core", true,
			r.beatLine("Redis, single", single, func(p beatPoint) float64 { return p.RedisCPU }),
			r.beatLine("Redis, batches", batches, func(p beatPoint) float64 { return p.RedisCPU }),
			r.beatLine("streamcap, single", single, func(p beatPoint) float64 { return p.SidecarCPU }),
			r.beatLine("streamcap, batches", batches, func(p beatPoint) float64 { return p.SidecarCPU }))
		add("heartbeats", p, err)
		p, err = lines("Acquire p99 with heartbeats / without", "heartbeats/s", "ratio", true,
			r.beatLine("single", single, func(p beatPoint) float64 { return p.P99Ratio }),
			r.beatLine("batches", batches, func(p beatPoint) float64 { return p.P99Ratio }))
		add("heartbeats-p99", p, err)
	}
	if len(r.MemoryRedis) > 0 {
		p, err := lines("Memory with Redis", "live slots", "MiB", false,
			memoryLine("Redis, used", r.MemoryRedis, func(p memoryPoint) float64 { return p.RedisUsed / mebi }),
			memoryLine("streamcap, resident", r.MemoryRedis, func(p memoryPoint) float64 { return p.SidecarResident / mebi }))
		add("memory-redis", p, err)
	}
	if len(r.MemoryEmbedded) > 0 {
		p, err := lines("Memory with the embedded store", "live slots", "MiB", false,
			memoryLine("streamcap, resident", r.MemoryEmbedded, func(p memoryPoint) float64 { return p.SidecarResident / mebi }),
			memoryLine("its live heap", r.MemoryEmbedded, func(p memoryPoint) float64 { return p.SidecarHeap / mebi }),
			series{title: "512 bytes a slot", dashed: true, points: memoryLine("", r.MemoryEmbedded, func(p memoryPoint) float64 {
				return r.MemoryEmbedded[0].SidecarResident/mebi + float64(p.Slots)*512/mebi
			}).points})
		add("memory-embedded", p, err)
	}
	for _, growth := range []struct {
		name, title, along string
		points             []growthPoint
		x                  func(growthPoint) float64
	}{
		{"growth-slots", "An acquire and its release, by slots of the user", "slots a user", r.GrowthSlots,
			func(p growthPoint) float64 { return float64(p.SlotsPerUser) }},
		{"growth-users", "An acquire and its release, by users", "users", r.GrowthUsers,
			func(p growthPoint) float64 { return float64(p.Users) }},
	} {
		if len(growth.points) == 0 {
			continue
		}
		line := series{title: "in Redis"}
		for _, point := range growth.points {
			line.points = append(line.points, plotter.XY{X: growth.x(point), Y: point.RedisMicros})
		}
		p, err := lines(growth.title, growth.along, "µs", true, line)
		add(growth.name, p, err)
	}
	return all, first
}

// beside lists streamcap and the peers. streamcap is measured beside each of them; the first time is shown.
func beside(pairings []pairing) (names []string, loads []load) {
	names, loads = []string{"streamcap"}, []load{pairings[0].OursMedian}
	labels := map[string]string{"lua": "Lua module", "floor": "Go 204", "return": "return 204"}
	for _, p := range pairings {
		label := labels[p.Peer]
		if label == "" {
			label = p.Peer
		}
		names, loads = append(names, label), append(loads, p.TheirsMedian)
	}
	return names, loads
}

func barsOf(title string, loads []load, value func(load) float64) series {
	s := series{title: title}
	for _, l := range loads {
		s.points = append(s.points, plotter.XY{Y: value(l)})
	}
	return s
}

func (r *results) beatLine(title, form string, value func(beatPoint) float64) series {
	s := series{title: title}
	for _, p := range r.Heartbeats {
		if p.Form == form {
			s.points = append(s.points, plotter.XY{X: p.Sent, Y: value(p)})
		}
	}
	slices.SortFunc(s.points, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return s
}

func memoryLine(title string, points []memoryPoint, value func(memoryPoint) float64) series {
	s := series{title: title}
	for _, p := range points {
		s.points = append(s.points, plotter.XY{X: float64(p.Slots), Y: value(p)})
	}
	return s
}

// bars draws groups of bars side by side.
func bars(title, unit string, names []string, groups ...series) (*plot.Plot, error) {
	p := newPlot(title, "", unit)
	width := vg.Points(48) / vg.Length(len(groups))
	for i, group := range groups {
		values := make(plotter.Values, len(group.points))
		for j, point := range group.points {
			values[j] = point.Y
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, err
		}
		chart.Color, chart.LineStyle.Width = palette(i), 0
		chart.Offset = width * (vg.Length(i) - vg.Length(len(groups)-1)/2)
		p.Add(chart)
		if group.title != "" {
			p.Legend.Add(group.title, chart)
		}
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	return p, nil
}

// lines draws lines with their points; along a logarithmic axis where the steps are powers.
func lines(title, along, unit string, logarithmic bool, all ...series) (*plot.Plot, error) {
	p := newPlot(title, along, unit)
	if logarithmic {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.X.Tick.Marker = grouped{p.X.Tick.Marker}
	for i, one := range all {
		if len(one.points) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(one.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, points.Color = palette(i), vg.Points(1.5), palette(i)
		if one.dashed {
			line.Color, line.Dashes = color.Gray{Y: 0x80}, []vg.Length{vg.Points(4), vg.Points(3)}
			p.Add(line)
			p.Legend.Add(one.title, line)
			continue
		}
		p.Add(line, points)
		p.Legend.Add(one.title, line, points)
	}
	return p, nil
}

// grouped writes the labels of an axis as 45,000.
type grouped struct{ plot.Ticker }

func (g grouped) Ticks(low, high float64) []plot.Tick {
	ticks := g.Ticker.Ticks(low, high)
	for i, tick := range ticks {
		if tick.Label != "" {
			ticks[i].Label = thousands(tick.Value)
		}
	}
	return ticks
}

func newPlot(title, along, unit string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, along, unit
	p.Title.Padding = vg.Points(8)
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(3)
	p.Add(plotter.NewGrid())
	return p
}

func drawn(p *plot.Plot) ([]byte, error) {
	p.Y.Max *= 1.15 // room for the legend
	writer, err := draw.NewFormattedCanvas(16*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	canvas := draw.New(writer)
	corners := []vg.Point{canvas.Min, {X: canvas.Min.X, Y: canvas.Max.Y}, canvas.Max, {X: canvas.Max.X, Y: canvas.Min.Y}}
	canvas.FillPolygon(color.White, corners)
	p.Draw(draw.Crop(canvas, vg.Points(6), -vg.Points(24), vg.Points(4), -vg.Points(4))) // the last label stands out to the right
	var svg bytes.Buffer
	if _, err := writer.WriteTo(&svg); err != nil {
		return nil, err
	}
	return svg.Bytes(), nil
}
