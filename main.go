// Command streamcap stands next to nginx and caps how many streams each user may run at once. The README says how to use
// it; this file is its wiring and its lifetime.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"streamcap/leanhttp"
	"streamcap/slotstore"
)

// version is set by the linker (-X main.version=…).
var version string

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// The exit codes.
const (
	exitOK       = 0
	exitFailure  = 1 // an address in use, a store that fails its check, a second signal
	exitSettings = 2
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, signals))
}

const usage = `streamcap caps how many streams each user may run at once.

  streamcap              serve
  streamcap check        try the settings and every role's connection to the store
  streamcap healthcheck  ask the /healthz of the process that serves
  streamcap version      print the version

It is configured by STREAMCAP_* environment variables; the README lists them.
`

// run is the program without its process: a test can call it on port 0.
func run(args, environ []string, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	command := strings.Join(args, " ")
	if len(args) > 0 && strings.TrimSpace(command) == "" {
		fmt.Fprintf(stderr, "streamcap: the command is empty\n\n%s", usage)
		return exitSettings
	}
	switch command {
	case "version", "--version":
		fmt.Fprintln(stdout, buildVersion())
		return exitOK
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return exitOK
	case "healthcheck":
		return runHealthcheck(context.Background(), environ, stdout, stderr)
	case "", "serve", "check":
	default:
		fmt.Fprintf(stderr, "streamcap: there is no command %q\n\n%s", command, usage)
		return exitSettings
	}
	cfg, err := loadConfig(environ)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitSettings
	}
	if command == "check" {
		return runCheck(context.Background(), cfg, stdout)
	}
	log := newLogger(stderr, cfg.LogLevel, cfg.LogFormat)
	if err := serve(cfg, log, signals); err != nil {
		log.Error().Err(err).Msg("ended with an error")
		return exitFailure
	}
	return exitOK
}

// openStore opens the store that the settings name. It waits for nobody.
func openStore(cfg config, events slotstore.Events) slotstore.Store {
	if cfg.Redis.Mode == "" {
		return slotstore.NewMemory(lifetimes(cfg), events, 0)
	}
	return slotstore.NewRedis(redisOptions(cfg), lifetimes(cfg), events)
}

func lifetimes(cfg config) slotstore.Lifetimes {
	return slotstore.Lifetimes{Slot: cfg.SlotTTL, Initial: cfg.InitialTTL, MaxAge: cfg.MaxStreamAge}
}

func redisOptions(cfg config) slotstore.RedisOptions {
	return slotstore.RedisOptions{
		Mode: cfg.Redis.Mode, Network: cfg.Redis.Network, Addresses: cfg.Redis.Addresses, DB: cfg.Redis.DB,
		Username: cfg.Redis.Username, Password: cfg.Redis.Password, SentinelMaster: cfg.Redis.SentinelMaster,
		TLS: cfg.Redis.TLS, Prefix: cfg.KeyPrefix,
		AcquireTimeout: cfg.AcquireTimeout, HeartbeatTimeout: cfg.HeartbeatTimeout,
		ReleaseTimeout: cfg.ReleaseTimeout, AdminTimeout: cfg.AdminTimeout,
	}
}

func storeName(cfg config) string {
	if cfg.Redis.Mode == "" {
		return "memory"
	}
	return "redis"
}

// serve runs until a signal: then it stops listening, finishes what is under way, sends kept releases once more and
// closes the store. A second signal ends it at once, with an error.
func serve(cfg config, log zerolog.Logger, signals <-chan os.Signal) error {
	ctx := context.Background()
	listener, err := listen(ctx, cfg.Listen, cfg.SocketMode)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // the server has closed it, unless we failed on the way
	adminListener, err := listen(ctx, cfg.AdminListen, cfg.SocketMode)
	if err != nil {
		return err
	}
	defer adminListener.Close() //nolint:errcheck // likewise
	var nginxConn net.PacketConn
	if cfg.NginxLogListen.Network != "" {
		if nginxConn, err = listenPacket(ctx, cfg.NginxLogListen, cfg.SocketMode); err != nil {
			return err
		}
	}

	defer runtime.KeepAlive(collectSeldom())
	service := newService(cfg, log)
	started := log.Info().Str("event", "started").Str("version", buildVersion()).Str("store", storeName(cfg)).
		Stringer("redis", cfg.Redis).Str("prefix", cfg.KeyPrefix).Str("listen", bound(listener.Addr())).Str("admin_listen", bound(adminListener.Addr()))

	var working sync.WaitGroup // ends before the store is closed
	settling, stopSettling := context.WithCancel(ctx)
	defer stopSettling()
	working.Go(func() { service.unsettled.run(settling) })
	working.Go(func() { service.sample(settling) })
	endNginxLog := func() {}
	if nginxConn != nil {
		started.Str("nginx_log_listen", bound(nginxConn.LocalAddr()))
		nginxLog := &nginxLog{
			conn: nginxConn, store: service.store, unsettled: service.unsettled, trouble: service.trouble, metrics: service.metrics, log: log,
			bad: throttle{every: time.Minute},
		}
		working.Go(nginxLog.run)
		endNginxLog = nginxLog.end
	}
	public := newPublicServer(service.publicHandler(), log)
	admin := newServer(service.adminHandler(), log)
	serving := make(chan error, 2)
	go func() { serving <- public.Serve(listener) }()
	go func() { serving <- admin.Serve(adminListener) }()
	started.Msg("serving")

	select {
	case err := <-serving:
		return err
	case got := <-signals:
		log.Info().Str("event", "stopping").Str("signal", got.String()).Msg("stopping")
	}
	stopped := make(chan error, 1)
	go func() {
		grace, cancel := context.WithTimeout(ctx, stopGrace)
		defer cancel()
		shutdown(grace, public, admin)
		endNginxLog()
		stopSettling()
		working.Wait()
		service.looking.Wait()
		service.unsettled.end() //nolint:contextcheck // the grace may be over
		stopped <- service.store.Close()
	}()
	select {
	case err := <-stopped:
		log.Info().Msg("stopped")
		return err
	case <-time.After(stopGrace + stopRest):
		log.Warn().Msg("stopped, while the store still hangs")
		return nil
	case <-signals:
		return errors.New("a second signal: ended at once")
	}
}

// collectSeldom has the garbage collector run seldom while there is little in memory, where it would run dozens of times a
// second at full load, and early where the embedded store holds much. GOGC, where it is set, stays. What it returns counts as
// memory for as long as it lives, but is never touched and takes none.
func collectSeldom() (ballast []byte) {
	const byDefault, early = 100, 50
	if set := debug.SetGCPercent(early); set != byDefault {
		debug.SetGCPercent(set)
	}
	return make([]byte, 32<<20)
}

const (
	// stopGrace is how long what is under way may take to end.
	stopGrace = 5 * time.Second
	// stopRest is how long the last releases, and the store's connections, may take beyond it.
	stopRest = time.Second
)

func shutdown(ctx context.Context, servers ...interface {
	Shutdown(ctx context.Context) error
	Close() error
},
) {
	var stopping sync.WaitGroup
	for _, server := range servers {
		stopping.Go(func() {
			if server.Shutdown(ctx) != nil {
				_ = server.Close() // the grace is over
			}
		})
	}
	stopping.Wait()
}

// newPublicServer is for what nginx and backends ask.
func newPublicServer(handler http.Handler, log zerolog.Logger) *leanhttp.Server {
	return &leanhttp.Server{Server: newServer(handler, log), Reads: publicHeaders}
}

// newServer sets the timeouts that net/http leaves off. Idle connections outlive nginx's 60 s and 75 s and the 90 s of
// common HTTP pools, so that it is never this side that closes one under a request.
func newServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:                      handler,
		ReadHeaderTimeout:            5 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               128 << 10, // twice what the contract promises to take
		DisableGeneralOptionsHandler: true,
		ConnContext:                  withConn,
		ErrorLog:                     stdlog.New(warnings{log}, "", 0),
	}
}
