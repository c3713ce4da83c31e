// Package redistest starts a private redis-server for a test, with a clock that the test can move.
package redistest

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed shim/clock.c
var clockC []byte

// Server is a redis-server of the test's own. It listens on a unix socket alone, persists nothing and ends with the test.
type Server struct {
	Socket string
	Client *redis.Client // for looking behind the store's back

	t     testing.TB
	dir   string
	args  []string
	cmd   *exec.Cmd
	still time.Time
	moved time.Duration
}

// Start starts a server with further redis-server arguments and returns once it answers.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis") // a test's own directory may be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Server{Socket: filepath.Join(dir, "redis.sock"), t: t, dir: dir, args: args}
	s.setClock()
	s.Restart()
	s.Client = redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { s.Client.Close() })
	return s
}

// Restart starts the server again, empty, after [Server.Kill].
func (s *Server) Restart() {
	s.t.Helper()
	args := append([]string{
		"--port", "0", "--unixsocket", s.Socket, "--dir", s.dir, "--save", "", "--appendonly", "no",
	}, s.args...)
	s.cmd = exec.CommandContext(context.Background(), "redis-server", args...)
	s.cmd.Env = append(os.Environ(), "LD_PRELOAD="+shim(s.t), "CLOCK_FILE="+s.clock())
	var output bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("redis-server does not start (apt-get install redis-server): %v", err)
	}
	cmd, ended := s.cmd, make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // it may have ended, or been killed, already
		_ = cmd.Process.Kill()
		<-ended
		ended <- nil
	})
	for deadline := time.Now().Add(10 * time.Second); !answers("unix", s.Socket); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			s.t.Fatalf("redis-server ended: %v\n%s", err, output.String())
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("redis-server does not answer:\n%s", output.String())
		}
	}
}

// answers says whether the server answers PING, be it with a refusal or, where it speaks TLS, by hanging up.
func answers(network, address string) bool {
	conn, err := new(net.Dialer).DialContext(context.Background(), network, address)
	if err != nil {
		return false
	}
	defer conn.Close()
	answer := make([]byte, 1)
	_, writeErr := conn.Write([]byte("PING\r\n"))
	_, readErr := conn.Read(answer)
	return writeErr == nil && (readErr == nil || network == "tcp")
}

// Kill ends the server at once; nothing of it stays.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = os.Remove(s.Socket)
}

// Signal sends the server a signal, SIGSTOP for example.
func (s *Server) Signal(signal os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

// Pause has every script wait until [Server.Unpause]; the client goes on.
func (s *Server) Pause() { s.do("CLIENT", "PAUSE", "600000", "WRITE") }

// Unpause ends a pause.
func (s *Server) Unpause() { s.do("CLIENT", "UNPAUSE") }

func (s *Server) do(args ...any) {
	s.t.Helper()
	if err := s.Client.Do(s.t.Context(), args...).Err(); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}

// Waiting says how many of a role's connections wait with a script for the end of a pause.
func (s *Server) Waiting(role string) int {
	s.t.Helper()
	n := 0
	for line := range strings.Lines(s.Client.ClientList(s.t.Context()).Val()) {
		if strings.Contains(line, "name=streamcap-"+role+" ") && strings.Contains(line, "flags=b") {
			n++
		}
	}
	return n
}

func (s *Server) clock() string { return filepath.Join(s.dir, "clock") }

// Freeze stops the server's clock: from now on only [Server.Advance] moves it.
func (s *Server) Freeze() {
	s.t.Helper()
	s.still = time.Now()
	s.setClock()
}

// Advance moves the server's clock, back where d is negative.
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	s.moved += d
	s.setClock()
}

func (s *Server) setClock() {
	s.t.Helper()
	var clock [16]byte
	if !s.still.IsZero() {
		binary.NativeEndian.PutUint64(clock[:], uint64(s.still.UnixMilli()))
	}
	binary.NativeEndian.PutUint64(clock[8:], uint64(s.moved.Milliseconds()))
	file, err := os.OpenFile(s.clock(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(clock[:]); err != nil {
		s.t.Fatal(err)
	}
}

// shim is the built clock.c. It is made once on a machine, and made anew when clock.c has changed.
var shim = func() func(testing.TB) string {
	build := sync.OnceValues(func() (string, error) {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("streamcap-clock-%x.so", sha256.Sum256(clockC)))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		half := fmt.Sprint(path, ".", os.Getpid())
		cc := exec.CommandContext(context.Background(), "cc", "-shared", "-fPIC", "-O2", "-o", half, "-xc", "-")
		cc.Stdin = bytes.NewReader(clockC)
		if output, err := cc.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w\n%s", err, output)
		}
		return path, os.Rename(half, path)
	})
	return func(t testing.TB) string {
		t.Helper()
		path, err := build()
		if err != nil {
			t.Fatalf("the clock shim can't be built (apt-get install gcc libc6-dev): %v", err)
		}
		return path
	}
}()
