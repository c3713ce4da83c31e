package redistest

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Name stands for a DNS name: an address that new connections are led on from, to wherever it points. Those that are
// there stay where they are.
type Name struct {
	Address string

	network, target atomic.Value
	tries           atomic.Int64
}

// Tries is how many connections were made to the name.
func (n *Name) Tries() int { return int(n.tries.Load()) }

// NewName returns a name that leads nowhere: connections are closed at once. Rewrite says what becomes of each line that
// comes back; nil leaves them alone.
func NewName(t testing.TB, rewrite func(line string) string) *Name {
	t.Helper()
	n := &Name{}
	n.Address = Listen(t, func(near net.Conn) {
		n.tries.Add(1)
		network, ok := n.network.Load().(string)
		target, _ := n.target.Load().(string) // stored before the network
		if !ok || network == "" {
			return
		}
		far, err := new(net.Dialer).DialContext(context.Background(), network, target)
		if err != nil {
			return
		}
		var both sync.WaitGroup
		pass := func(to, from net.Conn, rewrite func(string) string) {
			defer to.Close()
			defer from.Close()
			if rewrite == nil {
				_, _ = io.Copy(to, from)
				return
			}
			for lines := bufio.NewReader(from); ; {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				if _, err := io.WriteString(to, rewrite(line)); err != nil {
					return
				}
			}
		}
		both.Go(func() { pass(far, near, nil) })
		both.Go(func() { pass(near, far, rewrite) })
		both.Wait()
	})
	return n
}

// Point leads new connections to the target; an empty network leads nowhere.
func (n *Name) Point(network, target string) {
	n.target.Store(target)
	n.network.Store(network)
}

// Listen serves each connection to an address of its own with serve, and closes it afterwards. All end with the test.
func Listen(t testing.TB, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu      sync.Mutex
		conns   = map[net.Conn]bool{}
		serving sync.WaitGroup
	)
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			serving.Go(func() {
				serve(conn)
				_ = conn.Close()
				mu.Lock()
				delete(conns, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return listener.Addr().String()
}
