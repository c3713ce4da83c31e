package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// machine is what can be done here.
type machine struct {
	firewall string // why there is none; empty: iptables rules can be set
	names    string // why names can't be made up; empty: we are the name server
	resolver *nameServer
}

// exitNotApart is how a process says that its new namespaces are of no use.
const exitNotApart = 90

var errNotApart = errors.New("the namespaces can't be set up") // a sentinel

// runInside runs the suite once more, in namespaces of its own: processes (nothing outlives it), mounts (/proc and
// resolv.conf) and network.
func runInside(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	runtime.LockOSThread()                                                                     // the child is to die with us, that is: with this thread
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-inside"}, args...)...) //nolint:gosec // ourselves
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_ = cmd.Wait() // the exit code says it all
	switch code := cmd.ProcessState.ExitCode(); {
	case code == exitNotApart:
		return 0, errNotApart
	case code >= 0:
		return code, nil
	}
	return exitBroken, nil // it was killed: that is the suite's own failure
}

// prepare makes the machine ready, and finds out what it can't do.
func prepare(inside bool) (*machine, error) {
	if err := raiseFileLimit(); err != nil {
		return nil, err
	}
	if !inside {
		const why = "needs namespaces of its own (root, or unprivileged user namespaces)"
		return &machine{firewall: why, names: why}, nil
	}
	steps := []func() error{
		func() error { return syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") },
		func() error { return syscall.Mount("proc", "/proc", "proc", 0, "") },
		func() error { return command("ip", "link", "set", "lo", "up") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotApart, err)
		}
	}
	m := &machine{}
	if err := command("iptables", "-w", "-L", "-n"); err != nil {
		m.firewall = err.Error()
	}
	resolver, err := startNameServer()
	if err != nil {
		m.names = err.Error()
	}
	m.resolver = resolver
	return m, nil
}

// raiseFileLimit takes what the kernel grants: nginx has two connections for each stream.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // said by us, so that our children have it, too
}

// command runs a program to its end.
func command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, output)
	}
	return nil
}

// drop has the kernel swallow every packet to an address; reject answers with a reset. What they return takes it back.
func (m *machine) drop(address string) (undo func() error, err error) {
	return m.rule(address, "DROP")
}

func (m *machine) reject(address string) (undo func() error, err error) {
	return m.rule(address, "REJECT", "--reject-with", "tcp-reset")
}

func (m *machine) rule(address string, target ...string) (undo func() error, err error) {
	host, port := splitAddress(address)
	rule := append([]string{"INPUT", "-p", "tcp", "-d", host, "--dport", port, "-j"}, target...)
	if err := command("iptables", append([]string{"-w", "-I"}, rule...)...); err != nil {
		return nil, err
	}
	return func() error { return command("iptables", append([]string{"-w", "-D"}, rule...)...) }, nil
}
