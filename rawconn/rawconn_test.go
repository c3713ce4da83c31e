package rawconn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"streamcap/rawconn"
)

// pair are the two ends of a connection, the first one of this package.
func pair(t *testing.T, network, address string) (*rawconn.Conn, net.Conn) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := net.Dial(network, listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	_ = far.SetDeadline(time.Now().Add(20 * time.Second))
	return rawconn.New(near), far
}

func eachNetwork(t *testing.T, test func(t *testing.T, near *rawconn.Conn, far net.Conn)) {
	t.Helper()
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": t.TempDir() + "/s"} {
		t.Run(network, func(t *testing.T) {
			near, far := pair(t, network, address)
			test(t, near, far)
		})
	}
}

// More than any socket has room for, both ways at once, from a far end that is slow to begin.
func TestAllThatIsWrittenArrives(t *testing.T) {
	eachNetwork(t, func(t *testing.T, near *rawconn.Conn, far net.Conn) {
		t.Helper()
		text := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		done := make(chan error, 2)
		go func() {
			n, err := near.Write(text)
			if err == nil && n != len(text) {
				err = io.ErrShortWrite
			}
			done <- errors.Join(err, near.CloseWrite())
		}()
		go func() {
			got, err := io.ReadAll(far)
			if err == nil && !bytes.Equal(got, text) {
				err = errors.New("what arrived is not what was written")
			}
			_, writeErr := far.Write(got)
			done <- errors.Join(err, writeErr, far.Close())
		}()
		got, err := io.ReadAll(near)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d of %d bytes came back, %v", len(got), len(text), err)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// Those of the net package, word for word: who reads logs knows them.
func TestErrorsAreThoseOfNet(t *testing.T) {
	eachNetwork(t, func(t *testing.T, near *rawconn.Conn, far net.Conn) {
		t.Helper()
		same := func(what string, ours, theirs error, is error) {
			t.Helper()
			if !errors.Is(ours, is) || ours.Error() != theirs.Error() {
				t.Errorf("%s: %v, net says %v", what, ours, theirs)
			}
		}
		b := make([]byte, 8)
		if n, err := near.Read(nil); n != 0 || err != nil {
			t.Errorf("nothing read: %d, %v", n, err)
		}
		_ = near.SetDeadline(time.Now().Add(-time.Second))
		_, ours := near.Read(b)
		_, theirs := near.Conn.Read(b)
		same("read after the deadline", ours, theirs, os.ErrDeadlineExceeded)
		_, ours = near.Write(b)
		_, theirs = near.Conn.Write(b)
		same("write after the deadline", ours, theirs, os.ErrDeadlineExceeded)
		if netErr, ok := errors.AsType[net.Error](ours); !ok || !netErr.Timeout() {
			t.Errorf("%v is no timeout", ours)
		}
		_ = near.SetDeadline(time.Time{})
		_ = far.Close()
		if _, err := near.Read(b); err != io.EOF { //nolint:errorlint // net says exactly that
			t.Errorf("read at the end: %v", err)
		}
		for { // the first may go out before the far end says that it has closed
			if _, ours = near.Write(b); ours != nil {
				break
			}
		}
		if !errors.Is(ours, syscall.EPIPE) && !errors.Is(ours, syscall.ECONNRESET) || !strings.Contains(ours.Error(), ": write: ") {
			t.Errorf("write to nobody: %v", ours)
		}
		_ = near.Close()
		_, ours = near.Read(b)
		_, theirs = near.Conn.Read(b)
		same("read after Close", ours, theirs, net.ErrClosed)
		_, ours = near.Write(b)
		_, theirs = near.Conn.Write(b)
		same("write after Close", ours, theirs, net.ErrClosed)
	})
}

func TestCloseAndDeadlineEndAReadThatWaits(t *testing.T) {
	for what, end := range map[string]func(*rawconn.Conn){
		"Close":    func(c *rawconn.Conn) { _ = c.Close() },
		"deadline": func(c *rawconn.Conn) { _ = c.SetReadDeadline(time.Now()) },
	} {
		near, _ := pair(t, "tcp", "127.0.0.1:0")
		ended := make(chan error, 1)
		go func() {
			_, err := near.Read(make([]byte, 1))
			ended <- err
		}()
		end(near)
		if err := <-ended; !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWhoHasLeft(t *testing.T) {
	eachNetwork(t, func(t *testing.T, near *rawconn.Conn, far net.Conn) {
		t.Helper()
		soon := func(want bool) {
			t.Helper()
			for deadline := time.Now().Add(10 * time.Second); near.Left() != want; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("left: %t", !want)
				}
			}
		}
		soon(false)
		_, _ = io.WriteString(far, "x")
		b := make([]byte, 2)
		soon(false)
		if n, err := near.Read(b); n != 1 || err != nil {
			t.Errorf("read %d, %v: the look has taken what was sent", n, err)
		}
		soon(false)
		_ = far.Close()
		soon(true)
		_ = near.Close()
		soon(true)
	})
}

func TestWhatIsNoSocketStaysAsItIs(t *testing.T) {
	a, b := net.Pipe()
	near := rawconn.New(a)
	go func() { _, _ = io.WriteString(b, "hello"); _ = b.Close() }()
	if text, err := io.ReadAll(near); string(text) != "hello" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := near.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if near.Left() {
		t.Error("nobody knows")
	}
	if err := near.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

func TestDatagrams(t *testing.T) {
	for network, address := range map[string]string{"udp": "127.0.0.1:0", "unixgram": t.TempDir() + "/d"} {
		conn, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		sender, err := net.Dial(network, conn.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sender.Close() })
		datagrams := rawconn.NewDatagrams(conn, 8)
		sent := []string{"one", "", "three", "longer than eight", "five"}
		want := []string{"one", "", "three", "longer t", "five"}
		for _, text := range sent {
			if _, err := sender.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		if err := datagrams.Read(func(d []byte) bool { got = append(got, string(d)); return len(got) == 2 }); err != nil || len(got) != 2 {
			t.Errorf("%s: %q, %v, want two at first", network, got, err)
		}
		if err := datagrams.Read(func(d []byte) bool { got = append(got, string(d)); return false }); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", network, got, err, want)
		}
		_ = conn.SetReadDeadline(time.Now())
		if err := datagrams.Read(func(d []byte) bool { t.Errorf("there was %q", d); return true }); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", network, err)
		}
		_ = conn.Close()
		if err := datagrams.Read(func([]byte) bool { return true }); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", network, err)
		}
	}
}
