package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// world is what a section runs in: processes of its own and a directory of its own.
type world struct {
	opts      options
	dir       string
	processes []*process
	redis     *redisServer // nil: none
	sidecar   *sidecar     // nil: none
}

// keyPrefix is streamcap's; the Lua peer has its own, so that neither can live on the other's slots.
const (
	keyPrefix    = "bench"
	luaKeyPrefix = "lua"
)

func newWorld(opts options) (*world, error) {
	if err := raiseFileLimit(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // nginx's workers need not be who we are
		return nil, err
	}
	return &world{opts: opts, dir: dir}, nil
}

// end ends everything, the last to start first.
func (w *world) end() {
	if w.redis != nil {
		_ = w.redis.client.Close() // nothing is lost with it
	}
	for _, p := range slices.Backward(w.processes) {
		p.end()
	}
	_ = os.RemoveAll(w.dir) // what stays is in the temporary directory
}

// launch starts a process that ends with the world, and returns once it serves.
func (w *world) launch(ctx context.Context, address, name string, env []string, program string, args ...string) (*process, error) {
	p, err := launch(ctx, w.dir, fmt.Sprintf("%s-%d", name, len(w.processes)+1), env, program, args...)
	if err != nil {
		return nil, err
	}
	w.processes = append(w.processes, p)
	return p, p.serves(ctx, address)
}

// redisServer is a private redis-server, without persistence.
type redisServer struct {
	*process

	address string
	client  *redis.Client // for bench alone
}

func (w *world) startRedis(ctx context.Context) error {
	r := &redisServer{address: freeAddress(ctx)}
	host, port, _ := strings.Cut(r.address, ":")
	var err error
	r.process, err = w.launch(ctx, r.address, "redis", nil, "redis-server",
		"--bind", host, "--port", port, "--dir", w.dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return err
	}
	r.client = redis.NewClient(&redis.Options{Addr: r.address, Protocol: 2, DisableIdentity: true, ReadTimeout: 30 * time.Second})
	w.redis = r
	return nil
}

// calls are how often each command ran since the server started, and "usec_"+command how long in all.
func (r *redisServer) calls(ctx context.Context) (map[string]float64, error) {
	info, err := r.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	calls := map[string]float64{}
	for line := range strings.Lines(info) {
		name, stats, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		if !found {
			continue
		}
		for stat := range strings.SplitSeq(stats, ",") {
			if value, ok := strings.CutPrefix(stat, "calls="); ok {
				calls[name], err = strconv.ParseFloat(value, 64)
			} else if value, ok := strings.CutPrefix(stat, "usec="); ok {
				calls["usec_"+name], err = strconv.ParseFloat(value, 64)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return calls, nil
}

// memory is used_memory, what the data takes, and used_memory_rss, what the process takes.
func (r *redisServer) used(ctx context.Context) (used, resident float64, err error) {
	info, err := r.client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "used_memory":
			used, err = strconv.ParseFloat(value, 64)
		case "used_memory_rss":
			resident, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return used, resident, nil
}

// leftovers waits until all slots are released, for at most 3 s, and returns how many users still have some. They go.
func (r *redisServer) leftovers(ctx context.Context) (int, error) {
	for deadline := time.Now().Add(3 * time.Second); ; pause(ctx, 10*time.Millisecond) {
		keys, err := r.client.DBSize(ctx).Result()
		if err != nil {
			return 0, err
		}
		sample, err := r.client.Exists(ctx, keyPrefix+":sample").Result()
		if err != nil {
			return 0, err
		}
		left := int(keys-sample+1) / 2 // of two keys each
		if left == 0 || time.Now().After(deadline) {
			return left, r.client.FlushDB(ctx).Err()
		}
	}
}

// sidecar is streamcap.
type sidecar struct {
	*process

	listen, admin, nginxLog string
}

// slotLifetime is longer than any section runs, so that what was filled stays although few heartbeats come.
const slotLifetime = 15 * time.Minute

// startSidecar starts streamcap with the world's Redis, or with its own store where there is none.
func (w *world) startSidecar(ctx context.Context) error {
	s := &sidecar{listen: freeAddress(ctx), admin: freeAddress(ctx), nginxLog: freeAddress(ctx)}
	env := []string{
		"STREAMCAP_LISTEN=" + s.listen, "STREAMCAP_ADMIN_LISTEN=" + s.admin, "STREAMCAP_NGINX_LOG_LISTEN=" + s.nginxLog,
		"STREAMCAP_KEY_PREFIX=" + keyPrefix, "STREAMCAP_SLOT_TTL=" + slotLifetime.String(),
		fmt.Sprintf("STREAMCAP_DEFAULT_LIMIT=%d", highLimit),
	}
	if w.redis != nil {
		env = append(env, "STREAMCAP_REDIS_URL=redis://"+w.redis.address)
	}
	var err error
	s.process, err = w.launch(ctx, s.listen, "streamcap", env, w.opts.streamcap)
	w.sidecar = s
	return err
}

// highLimit is one that no user reaches: bench measures grants. limit_conn takes no more than 65,535.
const highLimit = 60_000

// metrics are all of the sidecar's, as they are written: streamcap_acquire_total{result="granted"}.
func (s *sidecar) metrics(ctx context.Context) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	values := map[string]float64{}
	scanner := bufio.NewScanner(response.Body)
	for scanner.Scan() {
		line := scanner.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if values[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, err
		}
	}
	return values, scanner.Err()
}

// drops are the datagrams that the kernel threw away because the sidecar's socket was full.
func (s *sidecar) drops() (float64, error) {
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		return 0, err
	}
	_, port, _ := strings.Cut(s.nginxLog, ":")
	number, err := strconv.Atoi(port)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 12 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			return strconv.ParseFloat(fields[len(fields)-1], 64)
		}
	}
	return 0, errors.New("/proc/net/udp does not list the sidecar's socket: is STREAMCAP_NGINX_LOG_LISTEN on?")
}
