package redistest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Node is a redis-server on a port of 127.0.0.1, on the host's clock: alone, in a cluster or under sentinels. Its data
// and process end with the test.
type Node struct {
	Host, Port string
	TLS        *Certificates // nil: plaintext
	Client     *redis.Client // for looking behind the store's back, as the default user

	t       testing.TB
	command []string
	cmd     *exec.Cmd
	ended   chan error // of the process that runs
}

// NodeOptions say how a [Node] runs. The zero value is a plain one.
type NodeOptions struct {
	Host string // its address; empty: 127.0.0.1
	Port string // empty: a free one
	Args []string
	TLS  *Certificates // nil: plaintext; else the port speaks TLS alone
	// Password is the default user's, if any.
	Password string
	sentinel bool
}

// StartNode starts a redis-server and returns once it answers.
func StartNode(t testing.TB, options NodeOptions) *Node {
	t.Helper()
	dir := t.TempDir()
	n := &Node{Host: options.Host, Port: options.Port, TLS: options.TLS, t: t}
	if n.Host == "" {
		n.Host = "127.0.0.1"
	}
	if n.Port == "" {
		n.Port = FreePort(t)
	}
	n.command = []string{"redis-server"}
	if options.sentinel {
		config := filepath.Join(dir, "sentinel.conf") // sentinels rewrite it
		if err := os.WriteFile(config, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.command = append(n.command, config, "--sentinel")
	} else {
		n.command = append(n.command, "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
	}
	n.command = append(n.command, "--bind", n.Host, "--dir", dir)
	port := []string{"--port", n.Port}
	if options.TLS != nil {
		port = append([]string{"--port", "0", "--tls-port", n.Port}, options.TLS.args()...)
	}
	n.command = append(append(n.command, port...), options.Args...)
	if options.Password != "" {
		n.command = append(n.command, "--requirepass", options.Password)
	}
	client := &redis.Options{Addr: n.Address(), Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true, Password: options.Password}
	if options.TLS != nil {
		client.TLSConfig = options.TLS.Client()
	}
	n.Client = redis.NewClient(client)
	n.Run()
	t.Cleanup(func() { n.Client.Close() })
	return n
}

// Address is where the node listens, as host:port.
func (n *Node) Address() string { return net.JoinHostPort(n.Host, n.Port) }

// Run starts the node, again after [Node.Kill], and returns once it answers.
func (n *Node) Run() {
	n.t.Helper()
	n.Launch()
	for deadline := time.Now().Add(10 * time.Second); !answers("tcp", n.Address()); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-n.ended:
			n.ended <- err
			n.t.Fatalf("%v ended: %v\n%s", n.command, err, n.cmd.Stdout)
		default:
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%v does not answer:\n%s", n.command, n.cmd.Stdout)
		}
	}
}

// Launch starts the node without waiting for it.
func (n *Node) Launch() {
	n.t.Helper()
	n.cmd = exec.CommandContext(context.Background(), n.command[0], n.command[1:]...)
	output := &lockedBuffer{}
	n.cmd.Stdout, n.cmd.Stderr = output, output
	if err := n.cmd.Start(); err != nil {
		n.t.Fatalf("redis-server does not start (apt-get install redis-server): %v", err)
	}
	cmd, ended := n.cmd, make(chan error, 1)
	n.ended = ended
	go func() { ended <- cmd.Wait() }()
	n.t.Cleanup(func() { kill(cmd, ended) })
}

func kill(cmd *exec.Cmd, ended chan error) {
	_ = cmd.Process.Signal(syscall.SIGCONT) // it may have ended, or been killed, already
	_ = cmd.Process.Kill()
	ended <- <-ended
}

// Kill ends the node at once. What it knew of its cluster stays for [Node.Run].
func (n *Node) Kill() { kill(n.cmd, n.ended) }

// Signal sends the node a signal, SIGSTOP for example.
func (n *Node) Signal(signal os.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(signal); err != nil {
		n.t.Fatal(err)
	}
}

// Do runs a command that must succeed.
func (n *Node) Do(words ...string) any {
	n.t.Helper()
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	reply, err := n.Client.Do(context.Background(), args...).Result()
	if err != nil {
		n.t.Fatalf("%s: %v: %v", n.Address(), words, err)
	}
	return reply
}

// Info says whether INFO, or CLUSTER INFO, has this line.
func (n *Node) Info(section, line string) bool {
	words := []any{"INFO", section}
	if section == "cluster" {
		words = []any{"CLUSTER", "INFO"}
	}
	info, err := n.Client.Do(context.Background(), words...).Text()
	return err == nil && strings.Contains(info, line+"\r\n")
}

// wait polls until the condition holds.
func wait(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// FreePort is a port of 127.0.0.1 that nobody listens on. It is none of those that the kernel gives to outgoing
// connections: a client that dials one of them again and again may meet itself.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = listener.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// lockedBuffer takes a process's output while a test reads it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
