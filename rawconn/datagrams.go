package rawconn

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// Datagrams reads from a datagram socket.
type Datagrams struct {
	conn  net.PacketConn
	b     []byte
	errno syscall.Errno
}

// NewDatagrams reads datagrams of up to so many bytes; what is longer is cut.
func NewDatagrams(conn net.PacketConn, most int) *Datagrams {
	return &Datagrams{conn: conn, b: make([]byte, most)}
}

// Read waits for a datagram, and visits it and those behind it until there are no more, or visit has seen enough. A
// datagram is the visitor's until she returns. An error is the socket's, or its deadline's.
func (d *Datagrams) Read(visit func(datagram []byte) (enough bool)) error {
	socket, ok := d.conn.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	d.errno = 0
	err = raw.Read(func(fd uintptr) bool {
		for some := false; ; some = true {
			n, errno := call(syscall.SYS_READ, fd, d.b)
			if errno == syscall.EAGAIN {
				return some
			}
			if d.errno = errno; errno != 0 || visit(d.b[:n]) {
				return true
			}
		}
	})
	if err == nil && d.errno != 0 {
		err = os.NewSyscallError("read", d.errno)
	}
	return err
}
