package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot/plotter"
)

// nginx.conf.example may change without anybody thinking of bench.
func TestEveryVariantIsMadeOutOfTheExample(t *testing.T) {
	example, err := os.ReadFile("../nginx.conf.example")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{redis: &redisServer{address: "127.0.0.1:6379"}}
	at := places{dir: "/tmp/x", listen: "127.0.0.1:1", sidecar: "127.0.0.1:2", nginxLog: "127.0.0.1:3", backend: "127.0.0.1:4"}
	for _, v := range w.variants() {
		conf, err := v.render(string(example), at)
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
		}
		if gated := strings.Contains(conf, "auth_request     /_streamcap/acquire;"); gated != (v.gate == "") {
			t.Errorf("%s: is it gated by auth_request: %v", v.name, gated)
		}
		if tells := strings.Contains(conf, "syslog:server=127.0.0.1:3,"); tells != v.tellsEnd {
			t.Errorf("%s: does it tell of a request's end: %v", v.name, tells)
		}
		if strings.Contains(conf, "/var/log/nginx") || strings.Contains(conf, "127.0.0.1:9") {
			t.Errorf("%s: an address or path of the example is left", v.name)
		}
	}
}

func TestStreamsAreOfUsersWhoMostlyRunOne(t *testing.T) {
	perUser, ids := map[int]int{}, map[string]bool{}
	for n := range 12_000 {
		s := streamOf(n)
		perUser[s.user]++
		ids[string(s.appendID(nil))] = true
	}
	byCount := map[int]int{}
	for _, slots := range perUser {
		byCount[slots]++
	}
	if byCount[1] != 7000 || byCount[2] != 1000 || byCount[3] != 1000 || len(byCount) != 3 {
		t.Errorf("users by slots: %v", byCount)
	}
	if len(ids) != 12_000 {
		t.Errorf("%d request ids for 12,000 streams", len(ids))
	}
}

func TestVerdictsComeFromWhatWasMeasured(t *testing.T) {
	run := func(rate, p99, cpu float64) load { return load{Rate: rate, P99: p99, CPU: cpuPer1000s{Total: cpu}} }
	lua := pairing{
		Peer: "lua",
		Ours: []load{run(100, 2, 3), run(90, 2, 3), run(300, 9, 3)}, Theirs: []load{run(100, 1, 2), run(100, 1, 2), run(100, 1, 2)},
	}
	lua.summarize()
	verdicts := judge(&results{Peers: []pairing{lua}})
	want := []struct {
		got     float64
		reached bool
	}{{1, true}, {2, false}, {1.5, false}}
	if len(verdicts) != len(want) {
		t.Fatalf("%d verdicts", len(verdicts))
	}
	for i, v := range verdicts {
		if v.Got != want[i].got || v.Reached != want[i].reached {
			t.Errorf("%s: %v, reached %v; want %v, %v", v.Target, v.Got, v.Reached, want[i].got, want[i].reached)
		}
	}
}

func TestQuantile(t *testing.T) {
	var times []time.Duration
	for i := range 100 {
		times = append(times, time.Duration(i+1)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0.5: 51, 0.99: 100, 1: 100} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestChartsOfLittle(t *testing.T) {
	p, err := lines("title", "x", "y", true, series{title: "one", points: plotter.XYs{{X: 45, Y: 1}}}, series{title: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if svg, err := drawn(p); err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("%v: %.100s", err, svg)
	}
}

func TestGuideSaysWhatWasMeasured(t *testing.T) {
	r, err := readResults("../docs/bench/results.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.guide()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../docs/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/capacity.md is not what docs/bench/results.json makes of it: bin/bench -redraw docs/bench/results.json")
	}
}
