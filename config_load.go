package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/caarlos0/env/v11"
)

// mistake is one thing that is wrong with the settings.
type mistake struct {
	name    string // of the variable, in full
	held    string // its value, fit to be shown
	problem string
	example string
}

func (m mistake) Error() string {
	return fmt.Sprintf("%s=%s: %s (example: %s)", m.name, m.held, m.problem, m.example)
}

// settingsError is every mistake of one load: a line each, in the order of
// config's fields, then the unknown names.
type settingsError []mistake

func (e settingsError) Error() string {
	var text strings.Builder
	noun := "mistakes"
	if len(e) == 1 {
		noun = "mistake"
	}
	fmt.Fprintf(&text, "%d %s in the settings:", len(e), noun)
	for _, m := range e {
		text.WriteString("\n  " + m.Error())
	}
	return text.String()
}

// loading is one run of loadConfig.
type loading struct {
	known    []setting
	values   map[string]string // of known settings that are set, trimmed
	mistakes settingsError
}

// loadConfig reads the settings from name=value pairs as os.Environ returns
// them. Its error is a settingsError that lists everything that is wrong at
// once; no secret is in it, nor any part of one. It reads the files that the
// settings name, and never asks the network: Redis being away is no mistake.
func loadConfig(environ []string) (config, error) {
	l := loading{known: settings(), values: map[string]string{}}
	unknown := l.read(environ)

	var cfg config
	l.checkWords()
	l.parse(&cfg)
	l.checkValues(&cfg)
	l.loadRedis(&cfg.Redis)
	l.checkTogether(&cfg)
	slices.SortStableFunc(l.mistakes, func(a, b mistake) int {
		return l.position(a.name) - l.position(b.name)
	})
	l.mistakes = append(l.mistakes, l.suggest(unknown)...)
	if len(l.mistakes) > 0 {
		return config{}, l.mistakes
	}
	return cfg, nil
}

// loadListen reads LISTEN alone, for `streamcap healthcheck`: a mistake in any
// other setting must not make a serving process look dead.
func loadListen(environ []string) (listenAddress, error) {
	l := loading{known: settings(), values: map[string]string{}}
	l.read(slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		return !strings.HasPrefix(pair, envPrefix+"LISTEN=")
	}))
	var cfg config
	l.parse(&cfg)
	if len(l.mistakes) > 0 {
		return listenAddress{}, l.mistakes
	}
	return cfg.Listen, nil
}

// read fills values with what is set, and returns the names that no setting
// has. A pair of quotes is what `docker run --env-file` makes of NAME="", and
// counts as unset too.
func (l *loading) read(environ []string) (unknown []string) {
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(name, envPrefix)
		if name == "REDIS_PASSWORD" {
			// Redis compares passwords byte for byte, and a space at the end
			// may belong to one; a line end is what a secret store adds.
			value = strings.Trim(value, "\r\n")
		} else {
			value = strings.TrimSpace(value)
		}
		if blank := strings.TrimSpace(value); !ours || blank == "" || blank == `""` || blank == `''` {
			continue
		}
		s, ok := l.setting(name)
		switch {
		case !ok && !platformInjects(name, value):
			unknown = append(unknown, name)
		case !ok:
		case quoted(value) && name != "REDIS_PASSWORD":
			l.mistakes = append(l.mistakes, mistake{envPrefix + name, showValue(s, value), "the quotes are part of the value, leave them out", s.example()})
		default:
			l.values[name] = value
		}
	}
	return unknown
}

func quoted(value string) bool {
	first, last := value[0], value[len(value)-1]
	return len(value) > 1 && first == last && (first == '"' || first == '\'')
}

// platformNames are what Kubernetes and Docker links put into the environment
// of every container beside a service that is called streamcap, or
// streamcap-something: they must not stop the process.
var platformNames = regexp.MustCompile(`^(SERVICE_.*|PORT|PORT_.*|NAME|ENV_.*|.+_SERVICE_HOST|.+_SERVICE_PORT.*|.+_PORT_[0-9]+_.*)$`)

func platformInjects(name, value string) bool {
	return platformNames.MatchString(name) ||
		strings.HasSuffix(name, "_PORT") && (strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://"))
}

// suggest turns unknown names into mistakes, each with the nearest known name.
// Their values are never shown: a misspelt password is still a password.
func (l *loading) suggest(unknown []string) []mistake {
	slices.Sort(unknown)
	var found []mistake
	for _, name := range slices.Compact(unknown) {
		nearest := slices.MinFunc(l.known, func(a, b setting) int {
			return levenshtein.ComputeDistance(strings.ToUpper(name), a.name) - levenshtein.ComputeDistance(strings.ToUpper(name), b.name)
		})
		found = append(found, mistake{
			envPrefix + name, masked, "there is no such setting, did you mean " + envPrefix + nearest.name + "?",
			envPrefix + nearest.name + "=" + nearest.example(),
		})
	}
	return found
}

// checkWords names the values that aren't one of the few legal words, and takes
// them out of what is parsed.
func (l *loading) checkWords() {
	for _, s := range l.known {
		value, set := l.values[s.name]
		if words := s.words(); set && len(words) > 0 && !slices.Contains(words, value) {
			l.wrong(s.name, "must be "+strings.Join(words[:len(words)-1], ", ")+" or "+words[len(words)-1])
			delete(l.values, s.name)
		}
	}
}

// parse fills cfg with the values and the defaults.
func (l *loading) parse(cfg *config) {
	environment := make(map[string]string, len(l.values))
	for name, value := range l.values {
		environment[envPrefix+name] = value
	}
	err := env.ParseWithOptions(cfg, env.Options{Environment: environment, Prefix: envPrefix, FuncMap: parsers()})
	for _, failed := range parseErrors(err) {
		l.wrong(l.nameOf(failed.Name), failed.Err.Error())
	}
}

// parseErrors takes env's error apart. Anything in it but a value that can't be
// parsed is a wrong tag in config, which the first test finds.
func parseErrors(err error) []env.ParseError {
	if err == nil {
		return nil
	}
	var all env.AggregateError
	if !errors.As(err, &all) {
		panic(err)
	}
	parsed := make([]env.ParseError, len(all.Errors))
	for i, one := range all.Errors {
		if !errors.As(one, &parsed[i]) {
			panic(one)
		}
	}
	return parsed
}

// wrong notes a mistake of a setting, with the example of its tags.
func (l *loading) wrong(name, problem string) {
	s, _ := l.setting(name)
	l.wrongWith(name, problem, s.example())
}

func (l *loading) wrongWith(name, problem, example string) {
	s, _ := l.setting(name)
	l.mistakes = append(l.mistakes, mistake{envPrefix + name, showValue(s, l.values[name]), problem, example})
}

// masked stands for a secret, whatever its length.
const masked = "***"

// pathSyntax is what a value must look like to be shown as the path of a
// secret's file: people have put the secret itself there.
var pathSyntax = regexp.MustCompile(`^\.{0,2}/`)

// maxShown is how many bytes of a wrong value a message repeats.
const maxShown = 200

func showValue(s setting, value string) string {
	switch {
	case s.name == "REDIS_URL":
		return showRedisURL(value)
	case s.secret(), s.name == "REDIS_PASSWORD_FILE" && !pathSyntax.MatchString(value):
		return masked
	case len(value) > maxShown:
		return strconv.Quote(value[:maxShown]) + "…"
	default:
		return strconv.Quote(value)
	}
}

// isWrong says whether a setting has a mistake already: what contradicts it
// would only be noise.
func (l *loading) isWrong(names ...string) bool {
	return slices.ContainsFunc(l.mistakes, func(m mistake) bool {
		return slices.Contains(names, strings.TrimPrefix(m.name, envPrefix))
	})
}

func (l *loading) isSet(name string) bool { return l.values[name] != "" }

func (l *loading) setting(name string) (setting, bool) {
	i := slices.IndexFunc(l.known, func(s setting) bool { return s.name == name })
	if i < 0 {
		return setting{}, false
	}
	return l.known[i], true
}

// nameOf finds a setting by its field's name.
func (l *loading) nameOf(field string) string {
	i := slices.IndexFunc(l.known, func(s setting) bool {
		return reflect.TypeFor[config]().FieldByIndex(s.index).Name == field
	})
	return l.known[i].name
}

func (l *loading) position(name string) int {
	return slices.IndexFunc(l.known, func(s setting) bool { return envPrefix+s.name == name })
}
