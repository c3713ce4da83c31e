package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// listen binds a stream listener. A socket file that nobody listens on is replaced; one in use is an error.
func listen(ctx context.Context, address listenAddress, mode os.FileMode) (net.Listener, error) {
	if err := removeStale(ctx, address); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, address.Network, address.Address)
	if err != nil {
		return nil, err
	}
	return listener, chmod(address, mode)
}

// listenPacket binds a datagram listener, in the same way. Its socket file outlives it, and is stale then.
func listenPacket(ctx context.Context, address listenAddress, mode os.FileMode) (net.PacketConn, error) {
	if err := removeStale(ctx, address); err != nil {
		return nil, err
	}
	conn, err := new(net.ListenConfig).ListenPacket(ctx, address.Network, address.Address)
	if err != nil {
		return nil, err
	}
	growBuffer(conn)
	return conn, chmod(address, mode)
}

// growBuffer asks for room for some thousand datagrams, beyond net.core.rmem_max where the process may (CAP_NET_ADMIN). The
// kernel gives what it does; what does not fit is left to the TTL.
func growBuffer(conn net.PacketConn) {
	const room = 8 << 20
	sock, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, room) != nil {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, room)
		}
	})
}

func removeStale(ctx context.Context, address listenAddress) error {
	if !strings.HasPrefix(address.Network, "unix") {
		return nil
	}
	stat, err := os.Lstat(address.Address)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if stat.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen %s: there is a file that is no socket; move it away", address)
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, address.Network, address.Address)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = conn.Close() // it was opened to see whether anybody answers
		}
		return fmt.Errorf("listen %s: the socket is in use by another process", address)
	}
	return os.Remove(address.Address)
}

func chmod(address listenAddress, mode os.FileMode) error {
	if !strings.HasPrefix(address.Network, "unix") {
		return nil
	}
	return os.Chmod(address.Address, mode)
}

// bound is the address that was really bound, in the words of STREAMCAP_LISTEN.
func bound(address net.Addr) string {
	if strings.HasPrefix(address.Network(), "unix") {
		return "unix:" + address.String()
	}
	return address.String()
}
