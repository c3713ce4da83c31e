package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that the suite has started; its output is in files beside each other.
type process struct {
	name     string
	out, err string // files
	cmd      *exec.Cmd
	ended    chan struct{}
}

// launch starts a program with this environment and no other.
func launch(dir, name string, env []string, program string, args ...string) (*process, error) {
	p := &process{
		name: name, out: filepath.Join(dir, name+".out"), err: filepath.Join(dir, name+".err"),
		cmd: exec.CommandContext(context.Background(), program, args...), ended: make(chan struct{}),
	}
	stdout, err := os.Create(p.out)
	if err != nil {
		return nil, err
	}
	defer stdout.Close() // the program has its own
	stderr, err := os.Create(p.err)
	if err != nil {
		return nil, err
	}
	defer stderr.Close() // likewise
	p.cmd.Dir, p.cmd.Env = dir, append([]string{"PATH=" + searchPath}, env...)
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended shows in its log
		close(p.ended)
	}()
	return p, nil
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// end sends a signal and waits until the process is gone.
func (p *process) end(s syscall.Signal) error {
	if err := p.signal(s); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("%s did not end within 10 s of %v", p.name, s)
	}
}

// stopNow ends it however it is: a stopped process takes no other signal.
func (p *process) stopNow(s syscall.Signal) {
	_ = p.signal(syscall.SIGCONT) // it may have ended
	_ = p.end(s)
}

// status is a number of /proc/PID/status: VmRSS in kB, Threads.
func (p *process) status(field string) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.Atoi(strings.Fields(value)[0])
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", p.pid(), field)
}

// children are the processes that it has started itself.
func (p *process) children() (pids []int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.pid(), p.pid()))
	if err != nil {
		return nil, err
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// freeAddress is a port of host that nobody listens on, below those that the kernel hands out by itself.
func freeAddress(host string) string {
	for {
		address := net.JoinHostPort(host, strconv.Itoa(20000+rand.IntN(12000))) // a port
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
		if err == nil && listener.Close() == nil {
			return address
		}
	}
}

func splitAddress(address string) (host, port string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err) // freeAddress made it
	}
	return host, port
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
}

// eventually polls until ok says so.
func eventually(ctx context.Context, within time.Duration, what string, ok func() bool) error {
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", within, what)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
