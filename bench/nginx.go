package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// variant is how one peer's nginx differs from nginx.conf.example: the stream location, the maps and all the rest are the
// same for all of them.
type variant struct {
	name, title string
	top         string // before the events block: modules
	http        string // in the http block
	gate        string // instead of the location's auth_request; empty: it stays
	acquire     string // instead of the acquire location's proxy_pass; empty: it stays
	tellsEnd    bool   // the end-of-request lines stay
}

// variants are streamcap and its peers, by the letters.
func (w *world) variants() []variant {
	host, port, _ := strings.Cut(w.redis.address, ":")
	return []variant{
		{name: "streamcap", title: "streamcap", tellsEnd: true},
		{
			name: "lua", title: "nginx's Lua module, same scripts",
			top: "load_module modules/ndk_http_module.so; load_module modules/ngx_http_lua_module.so;",
			http: fmt.Sprintf(`
    lua_package_path "%s/?.lua;/usr/share/lua/5.1/?.lua;;";
    # Each release is a timer; the defaults (1,024 and 256) would lose some.
    lua_max_pending_timers 16384;
    lua_max_running_timers 2048;
    init_by_lua_block {
        require("peer").setup {
            host = "%s", port = %s, prefix = "%s", ttl_ms = %d, default_limit = %d, limits = {}, scripts = "%s",
        }
    }`, w.opts.path("bench"), host, port, luaKeyPrefix, slotLifetime.Milliseconds(), highLimit, w.opts.path("slotstore")),
			gate: `access_by_lua_block { require("peer").acquire() } log_by_lua_block { require("peer").log() }`,
		},
		{name: "floor", title: "auth_request to a Go handler that answers 204"},
		{name: "return", title: "auth_request to nginx's own return 204", acquire: "return 204;"},
		// Not a peer: all the lines that nginx can send.
		{name: "flood", title: "lines alone", acquire: "return 204;", tellsEnd: true},
		{
			name: "limit_conn", title: "limit_conn, one machine only",
			http: "\n    limit_conn_zone $stream_user zone=streams:32m;",
			gate: fmt.Sprintf("limit_conn streams %d;", highLimit),
		},
	}
}

// places are what every nginx is told of.
type places struct{ dir, listen, sidecar, nginxLog, backend string }

// render makes a variant's nginx.conf out of nginx.conf.example. A text that it should replace and doesn't find is an
// error: the example has changed, and bench must be told.
func (v variant) render(example string, at places) (string, error) {
	conf := example
	var missing error
	edit := func(from, to string) {
		if !strings.Contains(conf, from) && missing == nil {
			missing = fmt.Errorf("nginx.conf.example holds no %q to replace: bring bench/nginx.go up to date", from)
		}
		conf = strings.ReplaceAll(conf, from, to)
	}
	var temps strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temps, " %s_temp_path %s/%s;", kind, at.dir, kind)
	}
	// The load names its users itself. Not as an argument: in the subrequest $arg_… is the subrequest's own.
	edit("map $http_authorization $stream_identity {\n        default            \"\";",
		"map $http_authorization $stream_identity {\n        default $http_authorization;")
	edit("access_log /var/log/nginx/access.log stream_access;", "")
	edit("/run/nginx.pid", at.dir+"/nginx.pid")
	edit("/var/log/nginx/", at.dir+"/")
	edit("/etc/nginx/streamcap/", at.dir+"/")
	edit("listen 8080;", "listen "+at.listen+";")
	edit("server 127.0.0.1:9180 ", "server "+at.sidecar+" ")
	edit("server 127.0.0.1:9000 ", "server "+at.backend+" ")
	edit("\nhttp {\n", "\nhttp {\n   "+temps.String()+v.http+"\n")
	line := "access_log syslog:server=127.0.0.1:9514,nohostname,tag=streamcap streamcap;"
	if v.tellsEnd {
		edit(line, strings.Replace(line, "127.0.0.1:9514", at.nginxLog, 1))
	} else {
		edit(line, "access_log off;")
	}
	if v.gate != "" {
		edit("auth_request     /_streamcap/acquire;", v.gate)
		// The variables stay, empty: the backend's headers and the log's format are made of them.
		conf = regexp.MustCompile(`auth_request_set (\$\w+)\s+\$\w+;`).ReplaceAllString(conf, `set $1 "";`)
	}
	if v.acquire != "" {
		edit("proxy_pass http://streamcap/acquire;", v.acquire)
	}
	return v.top + "\n" + conf, missing
}

// startNginx starts a variant's nginx and returns its address.
func (w *world) startNginx(ctx context.Context, v variant, at places) (*process, string, error) {
	example, err := os.ReadFile(w.opts.path("nginx.conf.example"))
	if err != nil {
		return nil, "", err
	}
	at.listen, at.dir = freeAddress(ctx), filepath.Join(w.dir, "nginx-"+v.name)
	conf, err := v.render(string(example), at)
	if err != nil {
		return nil, "", err
	}
	p, err := w.runNginx(ctx, at.dir, at.listen, conf)
	return p, at.listen, err
}

// startBackend starts what all streams go to: an nginx that answers at once, with one worker, so that it disturbs little.
func (w *world) startBackend(ctx context.Context) (*process, string, error) {
	dir, address := filepath.Join(w.dir, "backend"), freeAddress(ctx)
	p, err := w.runNginx(ctx, dir, address, fmt.Sprintf(`
worker_processes 1;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log warn;
events { worker_connections 4096; }
http {
    client_body_temp_path %[1]s/client_body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
    access_log off;
    keepalive_requests 1000000;
    server { listen %[2]s; location / { return 200 "a stream's whole text\n"; } }
}`, dir, address))
	return p, address, err
}

func (w *world) runNginx(ctx context.Context, dir, address, conf string) (*process, error) {
	file := filepath.Join(dir, "nginx.conf")
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // nginx's workers need not be who we are
		return nil, err
	}
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil { //nolint:gosec // likewise
		return nil, err
	}
	globals := "daemon off; worker_rlimit_nofile 16384;"
	if os.Geteuid() == 0 {
		globals += " user root;" // its workers read what is ours
	}
	p, err := w.launch(ctx, address, filepath.Base(dir), nil, "nginx",
		"-p", "/usr/share/nginx", "-e", "stderr", "-c", file, "-g", globals)
	if err == nil {
		p.said = filepath.Join(dir, "error.log") // from now on it complains there
	}
	return p, err
}
