package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"streamcap/slotstore/redistest"
)

// The tests of this file hold the dashboard, the alerts and the runbook against what the service exports, and feed
// promtool with what a real one exported while something went wrong.

const (
	dashboardFile = "deploy/grafana-dashboard.json"
	rulesFile     = "deploy/prometheus-rules.yml"
	runbookFile   = "docs/RUNBOOK.md"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s (apt-get install prometheus): %v\n%s", strings.Join(args, " "), err, output)
	}
}

func TestPrometheusFilesAreSound(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "config", "deploy/prometheus.yml")
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", "deploy/prometheus-rules_test.yml")
}

// exported is what a running service exports: the values of each label by metric and label.
func exported(t *testing.T) map[string]map[string][]string {
	t.Helper()
	label := regexp.MustCompile(`(\w+)="([^"]*)"`)
	all := make(map[string]map[string][]string)
	for series := range start(t).scrape() {
		name, labels, _ := strings.Cut(series, "{")
		if all[name] == nil {
			all[name] = make(map[string][]string)
		}
		for _, pair := range label.FindAllStringSubmatch(labels, -1) {
			all[name][pair[1]] = append(all[name][pair[1]], pair[2])
		}
	}
	return all
}

// ofScraping are the labels and the metric that Prometheus adds.
var ofScraping = []string{"job", "instance", "up"}

func TestDashboardAlertsAndRunbookNameWhatIsExported(t *testing.T) {
	t.Parallel()
	all := exported(t)
	metric := regexp.MustCompile(`\b(streamcap_[a-z_]+[a-z])(?:\{([^{}]*)\})?|\b([a-z_]+)\{([^{}]*)\}`)
	matcher := regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	grouping := regexp.MustCompile(`\b(?:by|on|without|group_left) \(([^)]*)\)`)
	texts := map[string]string{
		rulesFile: readText(t, rulesFile), runbookFile: readText(t, runbookFile), "deploy/prometheus-rules_test.yml": readText(t, "deploy/prometheus-rules_test.yml"),
		dashboardFile: strings.Join(slices.Collect(maps.Values(dashboard(t).expressions())), "\n"),
	}
	for file, text := range texts {
		found := metric.FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, match := range found {
			name, matchers := match[1]+match[3], match[2]+match[4]
			labels, known := all[name]
			if _, histogram := all[name+"_bucket"]; !known && !histogram && !slices.Contains(ofScraping, name) {
				t.Errorf("%s: nobody exports %s", file, name)
			}
			for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
				for value := range strings.SplitSeq(m[3], "|") {
					if !slices.Contains(ofScraping, m[1]) && !slices.Contains(labels[m[1]], value) {
						t.Errorf("%s: %s is never exported with %s=%q", file, name, m[1], value)
					}
				}
			}
		}
		for _, match := range grouping.FindAllStringSubmatch(text, -1) {
			for label := range strings.SplitSeq(match[1], ", ") {
				has := func(labels map[string][]string) bool { return labels[label] != nil }
				of := []string{"alertname"} // of ALERTS
				if !slices.Contains(append(of, ofScraping...), label) && !slices.ContainsFunc(slices.Collect(maps.Values(all)), has) {
					t.Errorf("%s groups by %q, which no metric has", file, label)
				}
			}
		}
	}
	for name := range all {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if strings.HasPrefix(name, "streamcap_") && !regexp.MustCompile(`\b`+base+`(_bucket)?\b`).MatchString(texts[dashboardFile]) {
			t.Errorf("the dashboard has nothing of %s", base)
		}
	}
}

type grafanaDashboard struct {
	UID           string `json:"uid"`
	ID            *int   `json:"id"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr string }
	}
}

func dashboard(t *testing.T) grafanaDashboard {
	t.Helper()
	var d grafanaDashboard
	if err := json.Unmarshal([]byte(readText(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

// expressions are all that the dashboard asks Prometheus, with its variables filled in, by where they stand.
func (d grafanaDashboard) expressions() map[string]string {
	variables := strings.NewReplacer("$job", "streamcap", "$heartbeat", "20", "$__rate_interval", "1m")
	all := make(map[string]string)
	for _, panel := range d.Panels {
		for i, target := range panel.Targets {
			all[fmt.Sprintf("panel %q, %c", panel.Title, 'A'+i)] = variables.Replace(target.Expr)
		}
	}
	for _, annotation := range d.Annotations.List {
		if annotation.Expr != "" {
			all["annotation "+annotation.Name] = variables.Replace(annotation.Expr)
		}
	}
	return all
}

func TestDashboardFitsEveryGrafana(t *testing.T) {
	t.Parallel()
	d := dashboard(t)
	if d.UID != "" || d.ID != nil {
		t.Error("its uid or id is fixed: it would take the place of another dashboard")
	}
	if d.SchemaVersion < 38 || d.SchemaVersion > 39 {
		t.Errorf("schema version %d is not of Grafana 10 or 11", d.SchemaVersion)
	}
	if len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
		t.Error("its first variable does not choose the data source")
	}
	for _, match := range regexp.MustCompile(`"uid": *"([^"]*)"`).FindAllStringSubmatch(readText(t, dashboardFile), -1) {
		if match[1] != "${datasource}" && match[1] != "-- Grafana --" {
			t.Errorf("the uid %q is of one Grafana alone", match[1])
		}
	}
	ids := make(map[int]bool)
	for i, panel := range d.Panels {
		if ids[panel.ID] {
			t.Errorf("two panels have the id %d", panel.ID)
		}
		ids[panel.ID] = true
		if panel.Type == "row" {
			continue
		}
		if sentence := panel.Description; !strings.HasPrefix(sentence, "Bad is ") || !strings.HasSuffix(sentence, ".") || strings.Contains(sentence, ". ") {
			t.Errorf("panel %q does not say in a sentence what a bad picture looks like", panel.Title)
		}
		for _, other := range d.Panels[:i] {
			a, b := panel.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", panel.Title, other.Title)
			}
		}
	}
}

// headings of a Markdown file as the anchors that GitHub and GitLab make of them.
func anchors(text string) []string {
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ +(.*?) *$`).FindAllStringSubmatch(text, -1) {
		slug := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	runbook := readText(t, runbookFile)
	places := anchors(runbook)
	alerts := strings.Split(readText(t, rulesFile), "- alert: ")[1:]
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	for _, alert := range alerts {
		name, _, _ := strings.Cut(alert, "\n")
		for _, line := range []string{
			`(?m)^ {10}severity: (critical|warning)$`, `(?m)^ {10}summary: ".+\."$`, `(?m)^ {10}description: ".+\."$`,
		} {
			if !regexp.MustCompile(line).MatchString(alert) {
				t.Errorf("%s has no line like %s", name, line)
			}
		}
		place := regexp.MustCompile(`(?m)^ {10}runbook: ` + runbookFile + `#(\S+)$`).FindStringSubmatch(alert)
		if place == nil || !slices.Contains(places, place[1]) {
			t.Errorf("%s: %v is no place in %s, which has %v", name, place, runbookFile, places)
		}
		if !strings.Contains(runbook, name) {
			t.Errorf("%s says nothing of %s", runbookFile, name)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(runbook, -1) {
		if !slices.Contains(places, link[1]) {
			t.Errorf("%s links to #%s, which isn't there", runbookFile, link[1])
		}
	}
}

func TestRunbookNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	runbook := readText(t, runbookFile)
	var code strings.Builder
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		if !strings.HasSuffix(source, "_test.go") {
			code.WriteString(readText(t, source))
		}
	}
	events := regexp.MustCompile("event `([a-z_]+)`").FindAllStringSubmatch(runbook, -1)
	selected := regexp.MustCompile(`\.event == "([a-z_]+)"`).FindAllStringSubmatch(runbook, -1)
	for _, event := range append(events, selected...) {
		if !strings.Contains(code.String(), `"event", "`+event[1]+`"`) {
			t.Errorf("%s: nobody logs the event %s", runbookFile, event[1])
		}
	}
	if len(events) == 0 || len(selected) == 0 {
		t.Error("it names no events")
	}
	for _, path := range regexp.MustCompile(`127\.0\.0\.1:918[01](/[a-z/]*[a-z])`).FindAllStringSubmatch(runbook, -1) {
		if !strings.Contains(code.String(), `"`+strings.TrimPrefix(path[1], "/admin")+`"`) {
			t.Errorf("%s: nobody serves %s", runbookFile, path[1])
		}
	}
	for _, name := range settingNames(runbook) {
		if !isSetting(name) {
			t.Errorf("%s names %s%s, which is no setting", runbookFile, envPrefix, name)
		}
	}
	var titles []string
	for _, panel := range dashboard(t).Panels {
		titles = append(titles, panel.Title)
	}
	panels := regexp.MustCompile(`panel "([^"]*)"`).FindAllStringSubmatch(runbook, -1)
	for _, panel := range panels {
		if !slices.Contains(titles, panel[1]) {
			t.Errorf("%s: the dashboard has no panel %q", runbookFile, panel[1])
		}
	}
	if len(panels) == 0 {
		t.Error("it names no panels")
	}
}

// tape is what Prometheus has of one sidecar: a scrape every so often, nil where it did not answer.
type tape struct {
	every   time.Duration
	scrapes []map[string]float64
}

// thinned is the tape of a Prometheus that scrapes less often and began later.
func (p tape) thinned(begin, n int) tape {
	slow := tape{every: time.Duration(n) * p.every}
	for i := begin; i < len(p.scrapes); i += n {
		slow.scrapes = append(slow.scrapes, p.scrapes[i])
	}
	return slow
}

// still adds scrapes of a service where nothing happens any more.
func (p tape) still(d time.Duration) tape {
	last := p.scrapes[len(p.scrapes)-1:]
	p.scrapes = slices.Concat(p.scrapes, slices.Repeat(last, int(d/p.every)))
	return p
}

func (p tape) length() time.Duration { return time.Duration(len(p.scrapes)-1) * p.every }

// inputSeries is the tape as promtool takes it, as far as a text names its metrics.
func (p tape) inputSeries(text string) []map[string]string {
	names := map[string]bool{"up": true}
	for _, scrape := range p.scrapes {
		for name := range ofOurs(scrape) {
			metric, _, _ := strings.Cut(name, "{")
			names[name] = strings.Contains(text, metric)
		}
	}
	var all []map[string]string
	for name, named := range names {
		if !named {
			continue
		}
		values := make([]string, len(p.scrapes))
		for i, scrape := range p.scrapes {
			value, there := scrape[name]
			switch {
			case name == "up":
				values[i] = strconv.FormatFloat(truth(scrape != nil), 'f', -1, 64)
			case there:
				values[i] = strconv.FormatFloat(value, 'f', -1, 64)
			default:
				values[i] = "_"
			}
		}
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if labels != "" {
			labels += ","
		}
		all = append(all, map[string]string{"series": metric + "{" + labels + `job="streamcap",instance="127.0.0.1:9181"}`, "values": strings.Join(values, " ")})
	}
	return all
}

// question is what PromQL must answer at some time of a tape: the values by their labels.
type question struct {
	at   time.Duration
	expr string
	want map[string]float64
}

// ask feeds promtool with the tape and the alerts.
func (p tape) ask(t *testing.T, questions ...question) {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text := readText(t, rulesFile)
	var checks []any
	for _, q := range questions {
		text += q.expr
		samples := []any{}
		for labels, value := range q.want {
			samples = append(samples, map[string]any{"labels": "{" + labels + "}", "value": value})
		}
		checks = append(checks, map[string]any{"expr": q.expr, "eval_time": fmt.Sprintf("%ds", int(q.at.Seconds())), "exp_samples": samples})
	}
	test, err := json.Marshal(map[string]any{ // JSON is YAML
		"rule_files": []string{rules}, "evaluation_interval": "15s",
		"tests": []any{map[string]any{"interval": fmt.Sprintf("%ds", int(p.every.Seconds())), "input_series": p.inputSeries(text), "promql_expr_test": checks}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules_test.yml")
	if err := os.WriteFile(file, test, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// firing is every alert that fires at a time, or fired within the time before it.
func firing(at, within time.Duration, want ...string) question {
	q := question{at: at, expr: `count by (alertname, reason) (ALERTS{alertstate="firing"})`, want: make(map[string]float64)}
	if within > 0 {
		q.expr = fmt.Sprintf(`count by (alertname, reason) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`, int(within.Seconds()))
	}
	for _, alert := range want {
		name, reason, has := strings.Cut(alert, " ")
		labels := `alertname="` + name + `"`
		if has {
			labels += `,reason="` + reason + `"`
		}
		q.want[labels] = 1
	}
	return q
}

const (
	victims      = 57
	slotTTL      = 120 // seconds, the default
	beatInterval = 20
)

// The incident: a deploy sends SIGKILL to everything while 57 streams run, and nobody says goodbye. Redis's clock stands
// still but for a second from scrape to scrape, so that a TTL of 120 s is one, and the sample is made once a minute.
func TestIncidentIsSeenAndHeals_E07(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		kill    int // second; samples are made at 0, 61, 122, …
		sidecar bool
	}{
		{"backends and nginx, where samples show the floor for the longest time", 206, false},
		{"the sidecar too, where they show it for the shortest", 187, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			seen := replay(t, c.kill, c.sidecar)

			live, beats := "streamcap_slots_live", `streamcap_heartbeat_total{result="extended"}`
			zero := 0
			for second, now := range seen.scrapes {
				switch {
				case now == nil || second < c.kill:
				case second < c.kill+slotTTL-beatInterval && (now[live] != victims || now[`streamcap_users{slots="1"}`] != victims):
					t.Fatalf("%d s after the kill %v slots are live, want the floor of %d", second-c.kill, now[live], victims)
				case second > c.kill+15 && now[beats] != seen.scrapes[len(seen.scrapes)-1][beats]:
					t.Fatalf("%d s after the kill there are heartbeats", second-c.kill)
				case zero == 0 && now[live] == 0:
					zero = second - c.kill
				case zero > 0 && now[live] != 0:
					t.Fatalf("%d s after the kill %v slots are live again", second-c.kill, now[live])
				}
			}
			if zero < slotTTL-beatInterval || zero > slotTTL+60 {
				t.Fatalf("the floor is gone after %d s (0: never), want a TTL and at most a minute for the sample", zero)
			}

			seen = seen.still(8 * time.Minute)
			killed := time.Duration(c.kill) * time.Second
			seen.ask(t,
				firing(killed, killed),
				firing(killed+105*time.Second, 0, "StreamcapSlotsLeaked"),
				firing(seen.length(), seen.length(), "StreamcapSlotsLeaked"),
				firing(seen.length(), 0))
			for _, begin := range []int{0, 8} {
				scraped, before := seen.thinned(begin, 15), killed-time.Duration(begin)*time.Second
				scraped.ask(t,
					firing(before, before),
					firing(before+105*time.Second, 0, "StreamcapSlotsLeaked"),
					firing(scraped.length(), scraped.length(), "StreamcapSlotsLeaked"),
					firing(scraped.length(), 0))
			}
		})
	}
}

// replay is the incident, scraped each second.
func replay(t *testing.T, kill int, sidecar bool) tape {
	t.Helper()
	server := redistest.Start(t)
	server.Freeze()
	settings := []string{
		"REDIS_URL=unix://" + server.Socket, "ACQUIRE_TIMEOUT=10s", "HEARTBEAT_TIMEOUT=10s", "RELEASE_TIMEOUT=10s", "ADMIN_TIMEOUT=10s",
	}
	s := start(t, settings...)
	seen := tape{every: time.Second}
	scrape := func() {
		t.Helper()
		var sample gjson.Result
		eventually(t, "there is a sample", func() bool {
			sample = gjson.Parse(server.Client.Get(t.Context(), "streamcap:sample").Val()).Get("slots")
			return sample.Exists()
		})
		var now map[string]float64
		eventually(t, "the sidecar shows it", func() bool {
			if now != nil {
				time.Sleep(50 * time.Millisecond) // it looks each two seconds
			}
			now = s.scrape()
			return now["streamcap_slots_live"] == sample.Num
		})
		seen.scrapes = append(seen.scrapes, now)
	}
	for second := range kill + slotTTL + 65 {
		switch {
		case second < kill:
			for n := second % beatInterval; n < victims; n += beatInterval {
				if user, id := fmt.Sprint("u", n), fmt.Sprint("r", n); second < beatInterval {
					s.acquire(user, id, "204 held")
				} else {
					s.heartbeat(user, id, "204")
				}
			}
		case second == kill && sidecar:
			s.signals <- syscall.SIGTERM // nothing is under way: it leaves Redis as SIGKILL would
			if code := <-s.exited; code != exitOK {
				t.Fatalf("exit code %d", code)
			}
			s.exited <- exitOK
		case second == kill+10 && sidecar:
			s = start(t, settings...)
		case second == kill+30:
			for n := range victims {
				s.acquire(fmt.Sprint("u", n), "again", "403 denied stream_limit_reached")
			}
		}
		if sidecar && second >= kill && second < kill+10 {
			seen.scrapes = append(seen.scrapes, nil)
		} else {
			scrape()
		}
		server.Advance(time.Second)
	}
	return seen
}

func TestAlertsFireOnRealTrouble_N27_H09_F18_A11_A12(t *testing.T) {
	t.Parallel()
	locked := redistest.Start(t, "--requirepass", "secret")
	several := func(n int, do func()) {
		for range n {
			do()
		}
	}
	for _, c := range []struct {
		name     string
		settings []string
		between  func(s *running, n int) // two scrapes, the n-th and the next
		want     []string
	}{
		{"all is well", nil, func(s *running, n int) {
			id := fmt.Sprint("r", n)
			s.acquire("u1", id, "204 held")
			s.acquire("u1", "more", "403 denied stream_limit_reached")
			several(9, func() { s.heartbeat("u1", id, "204") })
			s.heartbeat("u1", "late", "410 not_held")
			s.release("u1", id, "1")
			s.ends(fmt.Sprintf(endLine, "u1", id))
		}, nil},
		{"N27: another location is gated", nil, func(s *running, _ int) {
			several(3, func() { s.heartbeat("u1", "r1", "410 not_held") })
		}, []string{"StreamcapNothingAcquired"}},
		{"H09: backends use an id of their own", nil, func(s *running, n int) {
			id := fmt.Sprint("r", n)
			s.acquire("u1", id, "204 held")
			several(3, func() { s.heartbeat("u1", "mine", "410 not_held") })
			s.release("u1", id, "1")
		}, []string{"StreamcapHeartbeatsGone"}},
		{"F18: a wrong password", []string{"REDIS_URL=unix://" + locked.Socket}, func(s *running, n int) {
			s.do("GET", "/acquire", "", "X-User-Id: u1", fmt.Sprint("X-Request-Id: r", n))
		}, []string{"StreamcapCapOff", "StreamcapDegraded"}},
		{"Redis is away, failing closed", []string{"REDIS_URL=redis://127.0.0.1:1", "ON_STORE_FAILURE=closed"}, func(s *running, n int) {
			s.acquire("u1", fmt.Sprint("r", n), "403 denied store_unavailable")
		}, []string{"StreamcapCapOff", "StreamcapDegraded"}},
		{"Redis is away, capping locally", []string{"REDIS_URL=redis://127.0.0.1:1", "ON_STORE_FAILURE=local"}, func(s *running, n int) {
			s.acquire(fmt.Sprint("u", n), "r1", "204 held local")
		}, []string{"StreamcapCapOff", "StreamcapDegraded"}},
		{"A11 and A12: no user, no request id", nil, func(s *running, _ int) {
			s.wants("204 uncounted no_user", s.do("GET", "/acquire", "", "X-Request-Id: r1"))
			s.wants("204 uncounted no_request_id", s.do("GET", "/acquire", "", "X-User-Id: u1"))
		}, []string{"StreamcapNoIdentity no_user", "StreamcapNoIdentity no_request_id"}},
		{"A11: no user, and that is denied", []string{"ON_MISSING_ID=deny"}, func(s *running, _ int) {
			s.wants("401 denied no_user", s.do("GET", "/acquire", "", "X-Request-Id: r1"))
		}, []string{"StreamcapNoIdentity refused"}},
		{"nginx's log format is another one", nil, func(s *running, _ int) {
			several(2, func() { s.ends("<190>Nov 30 08:50:00 streamcap: u1 r1") })
		}, []string{"StreamcapNginxLogUnreadable"}},
		{"nobody releases", []string{"HEARTBEAT_INTERVAL=1ms", "SLOT_TTL=3ms", "DEFAULT_LIMIT=-1"}, func(s *running, n int) {
			several(2, func() { s.acquire("u1", fmt.Sprint("r", n), "204 held") })
			time.Sleep(4 * time.Millisecond) // the TTL
			several(2, func() { s.acquire("u1", fmt.Sprint("s", n), "204 held") })
			time.Sleep(4 * time.Millisecond)
		}, []string{"StreamcapSlotsExpire"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, c.settings...)
			if strings.Contains(strings.Join(c.want, " "), "Degraded") {
				eventually(t, "the store is found to be away", func() bool { return s.scrape()["streamcap_degraded"] == 1 })
			}
			seen := tape{every: 15 * time.Second}
			for n := range 25 * 4 {
				seen.scrapes = append(seen.scrapes, s.scrape())
				c.between(s, n)
			}
			seen.ask(t, firing(seen.length(), 0, c.want...))
		})
	}
}

// A panel whose query is wrong is as empty as one of a service that is well.
func TestEachPanelShowsWhatWasScraped(t *testing.T) {
	t.Parallel()
	s, server := withRedis(t)
	server.Client.Set(t.Context(), "streamcap:{full}:slots", "somebody else's", 0)
	seen := tape{every: 15 * time.Second}
	for n := range 9 {
		id := fmt.Sprint("r", n)
		s.acquire("u1", id, "204 held")
		s.heartbeat("u1", id, "204")
		s.release("u1", id, "1")
		s.acquire("full", id, "204 failopen wrongtype")
		seen.scrapes = append(seen.scrapes, s.scrape())
	}
	var questions []question
	for place, expr := range dashboard(t).expressions() {
		shows := map[string]float64{"": 1}
		if strings.HasPrefix(place, "annotation") {
			shows = nil // nothing was restarted; that Prometheus understands it is enough
		}
		questions = append(questions, question{at: seen.length(), expr: "clamp_max(count(" + expr + "), 1)", want: shows})
	}
	seen.ask(t, questions...)
}
