// Package rawconn reads and writes sockets without telling Go's scheduler.
//
// The scheduler takes a system call that lasts longer than some 20 µs for one that blocks: it gives the goroutine's
// processor to another thread, which has to be woken, and the first one sleeps when it comes back. A socket of Go's never
// blocks. But who writes to one on the same machine does the receiver's share of TCP in the same call, and that takes about
// as long.
package rawconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Conn is a connection, and a [syscall.Conn].
type Conn struct {
	net.Conn

	raw     syscall.RawConn // nil: no socket, and read and written as it is
	in, out transfer
}

// New is for any connection; one that is no socket stays what it is.
func New(conn net.Conn) *Conn {
	c := &Conn{Conn: conn}
	if socket, ok := conn.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			c.raw = raw
			c.in.set("read", syscall.SYS_READ, raw.Read)
			c.out.set("write", syscall.SYS_WRITE, raw.Write)
		}
	}
	return c
}

// SyscallConn implements [syscall.Conn]: the same each time.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil {
		return nil, errors.ErrUnsupported
	}
	return c.raw, nil
}

// CloseWrite is that of [net.TCPConn] and [net.UnixConn].
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	if c.raw == nil || len(b) == 0 {
		return c.Conn.Read(b)
	}
	n, err := c.in.once(c.Conn, b)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (written int, err error) {
	if c.raw == nil {
		return c.Conn.Write(b)
	}
	for written < len(b) && err == nil {
		var n int
		n, err = c.out.once(c.Conn, b[written:])
		written += n
	}
	return written, err
}

// Left says whether the other end has closed its half of the connection, or all of it, and sent nothing before that. It
// waits for nothing. Of a connection that is no socket nobody knows.
func (c *Conn) Left() bool {
	if c.raw == nil {
		return false
	}
	left := false
	err := c.raw.Control(func(fd uintptr) {
		n, errno := peek(fd)
		left = errno == 0 && n == 0 || errno == syscall.ECONNRESET
	})
	return left || err != nil
}

// transfer is one direction of a connection.
type transfer struct {
	mu    sync.Mutex
	op    string
	wait  func(func(fd uintptr) bool) error // calls until it is true, and waits in between until the socket is ready
	call  func(fd uintptr) bool
	b     []byte
	n     int
	errno syscall.Errno
}

func (t *transfer) set(op string, number uintptr, wait func(func(fd uintptr) bool) error) {
	t.op, t.wait = op, wait
	t.call = func(fd uintptr) bool {
		t.n, t.errno = call(number, fd, t.b)
		return t.errno != syscall.EAGAIN
	}
}

func (t *transfer) once(conn net.Conn, b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.errno = b, 0, 0
	err := t.wait(t.call)
	t.b = nil
	if waited, ok := errors.AsType[*net.OpError](err); ok {
		err = waited.Err
	} else if t.errno != 0 {
		err = os.NewSyscallError(t.op, t.errno)
	}
	if err != nil {
		err = &net.OpError{Op: t.op, Net: conn.LocalAddr().Network(), Source: conn.LocalAddr(), Addr: conn.RemoteAddr(), Err: err}
	}
	return t.n, err
}

// call is for a socket that does not block and a b that is not empty.
func call(number, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))) //nolint:gosec // the kernel wants an address
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// peek is a read of one byte, which stays where it is.
func peek(fd uintptr) (int, syscall.Errno) {
	var b byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), 1, syscall.MSG_PEEK, 0, 0) //nolint:gosec // likewise
	return int(n), errno
}
