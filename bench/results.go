package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// results are all that was measured. What was not asked for, or failed, is empty.
type results struct {
	Began   time.Time `json:"began"`
	Seconds float64   `json:"took_seconds"`
	Command string    `json:"command"`
	Short   bool      `json:"short"`
	Machine machine   `json:"machine"`
	Failed  []string  `json:"failed,omitempty"`

	Verdicts       []verdict     `json:"verdicts"`
	Peers          []pairing     `json:"peers_closed_loop,omitempty"`
	Rated          []pairing     `json:"peers_steady_rate,omitempty"`
	Datagrams      []datagrams   `json:"datagrams,omitempty"`
	Heartbeats     []beatPoint   `json:"heartbeats,omitempty"`
	Idle           *idlePoint    `json:"no_heartbeats,omitempty"`
	MemoryRedis    []memoryPoint `json:"memory_redis,omitempty"`
	MemoryEmbedded []memoryPoint `json:"memory_embedded,omitempty"`
	GrowthSlots    []growthPoint `json:"growth_slots_per_user,omitempty"`
	GrowthUsers    []growthPoint `json:"growth_users,omitempty"`
}

// machine is where the figures come from; others have others.
type machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	Kernel    string `json:"kernel"`
	Nginx     string `json:"nginx"`
	Redis     string `json:"redis"`
	Lua       string `json:"lua_module"`
	Wrk       string `json:"wrk"`
	Go        string `json:"go"`
	Streamcap string `json:"streamcap"`
	Load      string `json:"load_before"` // the machine's load averages at the start: others at work make figures doubtful
}

// describeMachine asks each program for its version; one that doesn't say is shown empty.
func describeMachine(ctx context.Context, opts options) machine {
	says := func(pattern string, name string, args ...string) string {
		output, _ := exec.CommandContext(ctx, name, args...).CombinedOutput() //nolint:gosec // bench names them; wrk -v fails and says it
		if found := regexp.MustCompile(pattern).FindSubmatch(output); found != nil {
			return string(found[1])
		}
		return ""
	}
	file := func(path, pattern string) string {
		text, _ := os.ReadFile(path) // then it is shown empty
		if found := regexp.MustCompile(pattern).FindSubmatch(text); found != nil {
			return string(found[1])
		}
		return ""
	}
	return machine{
		CPU: file("/proc/cpuinfo", `model name\s*: (.*)`), Cores: runtime.NumCPU(),
		Kernel: file("/proc/sys/kernel/osrelease", `(.*)`), Load: file("/proc/loadavg", `(\S+ \S+ \S+)`),
		Nginx: says(`nginx/(\S+)`, "nginx", "-v"), Redis: says(`v=(\S+)`, "redis-server", "--version"),
		Lua: says(`(\S+)`, "dpkg-query", "-W", "-f", "${Version}", "libnginx-mod-http-lua"),
		Wrk: says(`wrk (\S+)`, "wrk", "-v"), Go: runtime.Version(),
		Streamcap: says(`(\S.*)`, opts.streamcap, "version"),
	}
}

func (r *results) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // they are published
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	charts, err := r.charts()
	if err != nil {
		return err
	}
	files := map[string][]byte{"results.json": append(text, '\n')}
	var names []string
	for _, chart := range charts {
		files[chart.name+".svg"] = chart.svg
		names = append(names, chart.name)
	}
	files["results.md"] = []byte(r.markdown(names))
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // likewise
			return err
		}
	}
	return nil
}

func readResults(path string) (*results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w: is it a results.json of bench?", path, err)
	}
	return r, nil
}

// pairing is the one with this peer, or nil.
func pairingOf(pairings []pairing, peer string) *pairing {
	for i := range pairings {
		if pairings[i].Peer == peer {
			return &pairings[i]
		}
	}
	return nil
}

// beatsOf is the point of so many streams in this form, or nil.
func (r *results) beatsOf(streams int, form string) *beatPoint {
	for i := range r.Heartbeats {
		if r.Heartbeats[i].Streams == streams && r.Heartbeats[i].Form == form {
			return &r.Heartbeats[i]
		}
	}
	return nil
}

// table writes Markdown.
type table struct{ strings.Builder }

func newTable(columns ...string) *table {
	t := &table{}
	t.row(columns...)
	t.WriteString("|" + strings.Repeat(" --- |", len(columns)) + "\n")
	return t
}

func (t *table) row(cells ...string) {
	t.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
