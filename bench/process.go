package main

import (
	"bytes"
	"context"
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

// process is a program that bench has started. What it says is in a file.
type process struct {
	name  string
	said  string
	cmd   *exec.Cmd
	ended chan struct{}
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch starts a program with this environment and no other. It outlives ctx, until it is ended.
func launch(ctx context.Context, dir, name string, env []string, program string, args ...string) (*process, error) {
	p := &process{name: name, said: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	output, err := os.Create(p.said)
	if err != nil {
		return nil, err
	}
	defer output.Close()                                                      //nolint:errcheck // the program has its own
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, args...) //nolint:gosec // bench names its programs
	p.cmd.Dir, p.cmd.Env = dir, append([]string{"PATH=" + searchPath}, env...)
	p.cmd.Stdout, p.cmd.Stderr = output, output
	// A bench that was killed leaves nobody behind: nginx takes its workers along on SIGTERM alone. A group of its own, so
	// that Ctrl-C ends bench first, and bench the rest.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended shows in what it said
		close(p.ended)
	}()
	return p, nil
}

// end ends it and waits until it is gone.
func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill() // likewise
		<-p.ended
	}
}

// serves waits until it takes connections there.
func (p *process) serves(ctx context.Context, address string) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			return fmt.Errorf("%s has ended: %s", p.name, p.output())
		case <-time.After(10 * time.Millisecond):
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not serve %s within 10 s: %s", p.name, address, p.output())
			}
		}
	}
}

func (p *process) output() string {
	text, err := os.ReadFile(p.said)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-600):])
}

// pids are it and its children, which nginx calls workers.
func (p *process) pids() ([]int, error) {
	pid := p.cmd.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for word := range strings.FieldsSeq(string(text)) {
		child, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		pids = append(pids, child)
	}
	return pids, nil
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpu is how many seconds it and its children have computed. A process that is nil has none.
func (p *process) cpu() (float64, error) {
	if p == nil {
		return 0, nil
	}
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	ticks := 0
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The program's name may hold anything; fields are counted from its closing bracket: utime is the 14th, stime the 15th.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return float64(ticks) / ticksPerSecond, nil
}

// memory is a size of /proc/PID/status in bytes: VmRSS now, VmHWM at its highest.
func (p *process) memory(field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", p.cmd.Process.Pid, field)
}

// freeAddress is a port of loopback that nobody listens on, below those that the kernel hands out by itself.
func freeAddress(ctx context.Context) string {
	for {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))) //nolint:gosec // a port
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil && listener.Close() == nil || ctx.Err() != nil {
			return address
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// raiseFileLimit takes what the kernel grants; children inherit it.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
