package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// startNginx runs the shipped file. "Authorization: Bearer NAME" is user NAME; users called paid-… have the plan paid.
func (w *world) startNginx(ctx context.Context) error {
	dir := filepath.Join(w.dir, "nginx")
	w.nginx = freeAddress("127.0.0.1")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := w.configure(dir); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"keys-test.map":  `"~^Bearer\ (?<key_user>[a-z0-9-]+)$" $key_user;`,
		"plans-test.map": `"~^paid-" paid;`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	globals := "daemon off; worker_rlimit_nofile 16384;"
	if os.Geteuid() == 0 {
		globals += " user root;"
	}
	p, err := w.launch("nginx", nil, "nginx", "-c", filepath.Join(dir, "nginx.conf"), "-g", globals)
	if err != nil {
		return err
	}
	w.front = p
	err = eventually(ctx, 10*time.Second, "nginx serves", func() bool { return listens(ctx, w.nginx) })
	if err != nil {
		said, _ := os.ReadFile(p.err) // then it said nothing
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// configure writes the shipped file with nothing but ports and paths replaced.
func (w *world) configure(dir string) error {
	text, err := os.ReadFile(w.opts.nginxConf)
	if err != nil {
		return err
	}
	var temps strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temps, " %s_temp_path %s/%s;", kind, dir, kind)
	}
	conf := string(text)
	for _, edit := range [][2]string{
		{"/run/nginx.pid", dir + "/nginx.pid"},
		{"/var/log/nginx/", dir + "/"},
		{"/etc/nginx/streamcap/", dir + "/"},
		{"listen 8080;", "listen " + w.nginx + ";"},
		{"server 127.0.0.1:9180 ", "server " + w.sidecar.listen + " "},
		{"server=127.0.0.1:9514,", "server=" + w.sidecar.nginxLog + ","},
		{"server 127.0.0.1:9000 ", "server " + w.backend + " "},
		{"\nhttp {\n", "\nhttp {\n   " + temps.String() + "\n"},
	} {
		if !strings.Contains(conf, edit[0]) {
			return fmt.Errorf("%s holds no %q to replace", w.opts.nginxConf, edit[0])
		}
		conf = strings.ReplaceAll(conf, edit[0], edit[1])
	}
	return os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o644) //nolint:gosec // the directory is ours
}

// reload tells nginx of the backend that serves now, and returns once new workers take the connections.
func (w *world) reload(ctx context.Context) error {
	if err := w.configure(filepath.Join(w.dir, "nginx")); err != nil {
		return err
	}
	before, err := w.front.children()
	if err != nil {
		return err
	}
	if err = w.front.signal(syscall.SIGHUP); err != nil {
		return err
	}
	return eventually(ctx, 10*time.Second, "nginx has new workers alone, but for those on their way out", func() bool {
		workers, err := w.front.children()
		fresh := slices.DeleteFunc(workers, func(pid int) bool { return slices.Contains(before, pid) })
		return err == nil && len(fresh) >= runtime.NumCPU()
	})
}
