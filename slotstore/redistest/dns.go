package redistest

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// resolver is where this process asks for names, if it isn't nil. The look is by way of a resolver that never changes: a
// connection that an ended test has not given up yet may still be on its way to the same variable.
var resolver = redirect()

func redirect() *atomic.Pointer[string] {
	var elsewhere atomic.Pointer[string]
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if ours := elsewhere.Load(); ours != nil {
			network, address = "udp", *ours
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	return &elsewhere
}

// DNS answers for every name in this process, as long as the test runs: with the address that it points to, or that there
// is no such name. The test may not run beside others.
type DNS struct {
	mu sync.Mutex
	ip net.IP
}

// NewDNS returns a DNS that knows no name.
func NewDNS(t testing.TB) *DNS {
	t.Helper()
	d := &DNS{}
	conn, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := conn.LocalAddr().String()
	resolver.Store(&address)
	var serving sync.WaitGroup
	serving.Go(func() {
		query := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			if answer := d.answer(query[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() {
		resolver.Store(nil)
		_ = conn.Close()
		serving.Wait()
	})
	return d
}

// Point has every name lead to the address from now on.
func (d *DNS) Point(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ip = net.ParseIP(address).To4()
}

// answer is to a query for one name: RFC 1035, section 4.
func (d *DNS) answer(query []byte) []byte {
	const header, typeA, noSuchName = 12, 1, 3
	if len(query) < header {
		return nil
	}
	end := bytes.IndexByte(query[header:], 0) // of the name
	if end < 0 || len(query) < header+end+5 {
		return nil
	}
	question := query[header : header+end+5]
	answer := append([]byte{}, query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	answer = append(answer, question...)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ip == nil:
		answer[3] |= noSuchName
	case question[end+2] == typeA:
		answer[7] = 1
		answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
		answer = append(answer, d.ip...)
	}
	return answer
}
