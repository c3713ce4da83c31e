package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sidecar is streamcap, across its restarts.
type sidecar struct {
	*process

	settings                []string
	listen, admin, nginxLog string
	logs                    []string // of each start
	began, served           time.Time
}

// startSidecar starts it on free ports.
func (w *world) startSidecar(ctx context.Context, settings []string) (*sidecar, error) {
	s := &sidecar{
		settings: settings, listen: freeAddress("127.0.0.1"), admin: freeAddress("127.0.0.1"),
		nginxLog: freeAddress("127.0.0.1"),
	}
	return s, w.startSidecarAgain(ctx, s)
}

// startSidecarAgain starts it with the settings and on the addresses that it had, and returns once it serves.
func (w *world) startSidecarAgain(ctx context.Context, s *sidecar) error {
	env := []string{
		"STREAMCAP_LISTEN=" + s.listen, "STREAMCAP_ADMIN_LISTEN=" + s.admin, "STREAMCAP_NGINX_LOG_LISTEN=" + s.nginxLog,
	}
	for _, setting := range s.settings {
		env = append(env, "STREAMCAP_"+setting)
	}
	s.began = time.Now()
	p, err := w.launch("streamcap", env, w.opts.streamcap)
	if err != nil {
		return err
	}
	s.process = p
	s.logs = append(s.logs, p.err)
	if err := eventually(ctx, 5*time.Second, "streamcap serves", func() bool { return listens(ctx, s.listen) }); err != nil {
		said, _ := os.ReadFile(p.err) // then it said nothing
		return fmt.Errorf("%w: %s", err, said)
	}
	s.served = time.Now()
	return nil
}

// restart ends it with a signal and starts it again.
func (w *world) restart(ctx context.Context, s *sidecar, with syscall.Signal) error {
	if err := s.end(with); err != nil {
		return err
	}
	return w.startSidecarAgain(ctx, s)
}

// logLine is what the suite reads of one line of the sidecar's log.
type logLine struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	Role   string    `json:"role"`
	Reason string    `json:"reason"`
	Error  string    `json:"error"`
	Level  string    `json:"level"`
}

// lines reads the log of all its starts.
func (s *sidecar) lines() ([]logLine, error) {
	var lines []logLine
	for _, path := range s.logs {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			var line logLine
			if json.Unmarshal(scanner.Bytes(), &line) != nil {
				line.Event = "not JSON"
			}
			lines = append(lines, line)
		}
		err = scanner.Err()
		_ = file.Close() // it was only read
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// metric is what its own /metrics says of a name without labels.
func (s *sidecar) metric(name string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Close = true // a connection that stays would count among what is asked for
	client := newHTTPClient()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close() // it was only read
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s/metrics has no %s", s.admin, name)
}
