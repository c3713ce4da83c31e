package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The tests of this file hold what is written down beside the code against the
// code: names that drift apart break a user's setup without breaking a build.

var nginxExamples = []string{"nginx.conf.example", "nginx-two-hop.conf.example"}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// filesUnder lists the files below a directory whose names end in one of the
// given ways; without any, all of them.
func filesUnder(t *testing.T, directory string, endings ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != directory && (strings.HasPrefix(name, ".") || name == "bin") {
			return filepath.SkipDir
		}
		ends := func(ending string) bool { return strings.HasSuffix(path, ending) }
		if !entry.IsDir() && (len(endings) == 0 || slices.ContainsFunc(endings, ends)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// headersOfTheCode are the string literals of the program that look like a
// header's name.
func headersOfTheCode(t *testing.T) map[string]bool {
	t.Helper()
	name := regexp.MustCompile(`^[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)+$`)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	headers := map[string]bool{}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil && name.MatchString(text) {
					headers[http.CanonicalHeaderKey(text)] = true
				}
			}
			return true
		})
	}
	return headers
}

// acquireHeaders is everything that /acquire reads, as the contract lists it.
// The example must set each of them: what it leaves out, the client could set.
var acquireHeaders = []string{
	"User-Agent", "X-Original-Method", "X-Original-Uri", "X-Plan", "X-Real-Ip", "X-Request-Id", "X-Stream-Limit", "X-User-Id",
}

func TestNginxExamplesSetEveryHeaderOfAcquire_N14(t *testing.T) {
	t.Parallel()
	code := headersOfTheCode(t)
	for _, header := range acquireHeaders {
		if !code[header] {
			t.Errorf("the contract's %s is nowhere in the code", header)
		}
	}
	setting := regexp.MustCompile(`(?m)^\s*proxy_set_header\s+(\S+)\s`)
	for _, example := range nginxExamples {
		text := readText(t, example)
		off := strings.Index(text, "proxy_pass_request_headers off;")
		if off < 0 {
			t.Errorf("%s: no location has proxy_pass_request_headers off", example)
			continue
		}
		start := strings.LastIndex(text[:off], "location ")
		end := strings.Index(text[off:], "}")
		if start < 0 || end < 0 {
			t.Errorf("%s: proxy_pass_request_headers off is in no location", example)
			continue
		}
		var set []string
		for _, match := range setting.FindAllStringSubmatch(text[start:off+end], -1) {
			header := http.CanonicalHeaderKey(match[1])
			if !slices.Contains([]string{"Host", "Connection", "Content-Length"}, header) {
				set = append(set, header)
			}
		}
		slices.Sort(set)
		if !slices.Equal(set, acquireHeaders) {
			t.Errorf("%s: its acquire location sets\n%v, and /acquire reads\n%v", example, set, acquireHeaders)
		}
	}
}

func TestNginxExamplesNameOurHeaders(t *testing.T) {
	t.Parallel()
	code := headersOfTheCode(t)
	answers := regexp.MustCompile(`\$upstream_http_((?:x_stream|retry)_[a-z_]*[a-z])`)
	sets := regexp.MustCompile(`(?m)^\s*proxy_set_header\s+(X-(?:User|Request|Plan|Stream|Original)[A-Za-z-]*)\s`)
	for _, example := range nginxExamples {
		text := readText(t, example)
		if !answers.MatchString(text) {
			t.Errorf("%s uses none of our answer's headers", example)
		}
		for _, match := range answers.FindAllStringSubmatch(text, -1) {
			if header := http.CanonicalHeaderKey(strings.ReplaceAll(match[1], "_", "-")); !code[header] {
				t.Errorf("%s: %s reads a header that the code never sends", example, match[0])
			}
		}
		for _, match := range sets.FindAllStringSubmatch(text, -1) {
			if !code[http.CanonicalHeaderKey(match[1])] {
				t.Errorf("%s sets %s, which the code doesn't know", example, match[1])
			}
		}
	}
}

// settingNames are the settings that a text names, without those that container
// platforms inject, and without families (`STREAMCAP_SERVICE_*`).
func settingNames(text string) []string {
	var names []string
	for _, match := range regexp.MustCompile(`\bSTREAMCAP_([A-Z0-9_]*[A-Z0-9])\b`).FindAllStringSubmatch(text, -1) {
		if !platformInjects(match[1], "tcp://") {
			names = append(names, match[1])
		}
	}
	return names
}

func isSetting(name string) bool {
	return slices.ContainsFunc(settings(), func(s setting) bool { return s.name == name })
}

func TestSettingsThatAreWrittenDownExist(t *testing.T) {
	t.Parallel()
	files := []string{"README.md", "docker-compose.yml", "Dockerfile", "demo"}
	deployed := filesUnder(t, "deploy")
	if !slices.ContainsFunc(deployed, func(file string) bool { return strings.HasSuffix(file, ".service") }) {
		t.Error("deploy has no systemd unit")
	}
	for _, file := range slices.Concat(files, nginxExamples, deployed) {
		for _, name := range settingNames(readText(t, file)) {
			if !isSetting(name) {
				t.Errorf("%s names %s%s, which is no setting", file, envPrefix, name)
			}
		}
	}
	for _, file := range []string{"README.md", "docker-compose.yml"} {
		if len(settingNames(readText(t, file))) == 0 {
			t.Errorf("%s names no setting at all", file)
		}
	}
}

// The README has one row a setting, in config's order: | `STREAMCAP_NAME` |
// `default` | what it does |. A setting without a default says what happens
// then, without a code span of a value that it hasn't.
func TestReadmeTableIsTheSettings(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| *`STREAMCAP_([A-Z_]+)` *\\| *([^|]*?) *\\| *([^|]*?) *\\|")
	rows := row.FindAllStringSubmatch(readText(t, "README.md"), -1)
	var order []string
	for _, cells := range rows {
		order = append(order, cells[1])
		if cells[3] == "" {
			t.Errorf("the row of %s doesn't say what it is", cells[1])
		}
	}
	var want []string
	for _, s := range settings() {
		want = append(want, s.name)
		i := slices.Index(order, s.name)
		if i < 0 {
			t.Errorf("the README's table has no row for %s%s", envPrefix, s.name)
			continue
		}
		value, has := s.tags.Lookup("envDefault")
		written := rows[i][2]
		switch {
		case has && written != "`"+value+"`":
			t.Errorf("the README's default of %s is %s, the code's is `%s`", s.name, written, value)
		case !has && s.name == "INITIAL_TTL" && !strings.Contains(written, "SLOT_TTL"):
			t.Errorf("the README's default of INITIAL_TTL is %s, the code's is SLOT_TTL", written)
		case !has && s.name != "INITIAL_TTL" && (written == "" || strings.HasPrefix(written, "`")):
			t.Errorf("the README's default of %s is %q, and the code has none", s.name, written)
		}
	}
	if !t.Failed() && !slices.Equal(order, want) {
		t.Errorf("the README's table has the order\n%v, config has\n%v", order, want)
	}
}

func TestSlotstoreImportsNothingOfItsCallers(t *testing.T) {
	t.Parallel()
	forbidden := []string{"net/http", "github.com/go-chi", "github.com/rs/zerolog", "github.com/prometheus", "github.com/caarlos0/env", "expvar"}
	sources := filesUnder(t, "slotstore", ".go")
	if len(sources) == 0 {
		t.Fatal("slotstore has no Go files")
	}
	for _, source := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range file.Imports {
			path, err := strconv.Unquote(imported.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			wrong := func(pkg string) bool { return path == pkg || strings.HasPrefix(path, pkg+"/") }
			if path == "streamcap" || slices.ContainsFunc(forbidden, wrong) {
				t.Errorf("%s imports %s: the store returns errors and calls back, its callers speak HTTP, log and count", source, path)
			}
		}
	}
}

func TestImageIsBuiltFromEveryPackage(t *testing.T) {
	t.Parallel()
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./e2e/backend/go").Output()
	if err != nil {
		t.Fatal(err)
	}
	let := strings.Fields(readText(t, ".dockerignore"))
	for path := range strings.FieldsSeq(string(listed)) {
		if directory, ours := strings.CutPrefix(path, "streamcap/"); ours && !slices.Contains(let, "!"+directory) {
			t.Errorf(".dockerignore keeps %s out of the image", directory)
		}
	}
}

// provenCases are known ways for such a service to break, by the ids that the
// names of their tests carry.
var provenCases = strings.Fields(`
	A01 A02 A03 A04 A07 A08 A10 A11 A12 A13 A14 A15
	H01 H02 H05 H07 H08 H09
	R01 R04 R05 R06
	E01 E02 E04 E06 E07
	N01 N03 N04 N05 N06 N08 N09 N10 N13 N14 N15 N16 N17 N18 N19 N24 N25 N27
	F01 F02 F03 F04 F05 F06 F08 F11 F12 F13 F14 F15 F18 F19
	D01 D03 D04 D05 D06 D10 D11
	C01 C02 C04 C06 C07 C09
	S01 S02 S03 S04 S09
	P01 P03 P04 P06 P07
	M01 M03 M04
	G01 G03 G04
`)

// A case is proven by a Go test with _A01 in its name, by a bats test with the
// word A01 in its, or by a step of the compose test that says so.
func TestEveryCaseIsProven(t *testing.T) {
	t.Parallel()
	var names []string
	goTest := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	batsTest := regexp.MustCompile(`(?m)^@test (.+) \{$`)
	for _, file := range filesUnder(t, ".", "_test.go") {
		for _, match := range goTest.FindAllStringSubmatch(readText(t, file), -1) {
			names = append(names, strings.ReplaceAll(match[1], "_", " "))
		}
	}
	for _, file := range filesUnder(t, "e2e", ".bats") {
		for _, match := range batsTest.FindAllStringSubmatch(readText(t, file), -1) {
			names = append(names, match[1])
		}
	}
	step := regexp.MustCompile(`(?m)^ok "(.+)"$`)
	for _, match := range step.FindAllStringSubmatch(readText(t, "e2e/compose/test"), -1) {
		names = append(names, match[1])
	}
	all := strings.Join(names, "\n")
	var missing []string
	for _, id := range provenCases {
		if !regexp.MustCompile(`\b` + id + `\b`).MatchString(all) {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no test's name carries %s", strings.Join(missing, ", "))
	}
}
