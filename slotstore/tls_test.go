package slotstore_test

import (
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// overTLS is a store whose every role does well on a Redis that speaks TLS alone.
func overTLS(t *testing.T) (*redistest.Node, *flavour) {
	t.Helper()
	certificates := redistest.NewCertificates(t, "127.0.0.1")
	node := redistest.StartNode(t, redistest.NodeOptions{TLS: certificates})
	options := at("standalone", node.Address())
	options.TLS = certificates.Client()
	f := patient(t, options)
	f.wellRoles()
	return node, f
}

func TestTLSConnectionsAreKept_D06(t *testing.T) {
	t.Parallel()
	node, f := overTLS(t)
	f.checks()
	for n := range 50 {
		f.acquires("u"+strconv.Itoa(n), "r1", 1, slotstore.Granted, 1)
		f.acquires("u"+strconv.Itoa(n), "r2", 1, slotstore.Denied, 1)
	}
	info := node.Client.Info(t.Context(), "stats").Val()
	_, after, _ := strings.Cut(info, "total_connections_received:")
	count, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\r\n", 2)[0]))
	if err != nil || count > 20 {
		t.Errorf("%d connections for 100 acquires, %v", count, err)
	}
}

func TestTLSConnectionsThatWereCutAreMadeAnew_D06(t *testing.T) {
	t.Parallel()
	node, f := overTLS(t)
	for n := range 20 {
		node.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		f.acquires("u"+strconv.Itoa(n), "r1", 1, slotstore.Granted, 1) // the driver can't see that an idle one was closed
		f.extends("u"+strconv.Itoa(n), "r1", true)
	}
}

func TestTLSHandshakeThatIsNotAnswered_D06(t *testing.T) {
	t.Parallel()
	address := redistest.Listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	options := at("standalone", address)
	options.TLS = redistest.NewCertificates(t, "127.0.0.1").Client()
	start := time.Now()
	f := open(t, options)
	eventually(t, "every role says so", func() bool { return len(f.told()) >= 4 })
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("told after %s", took)
	}
	f.opens("u1") // and two more probes of each role
	f.stays("unavailable")
}

// stays wants each role to have told this once, and nothing else, after some more self-tests.
func (f *flavour) stays(reason string) {
	f.Helper()
	time.Sleep(1200 * time.Millisecond) // two more self-tests: what is not told leaves nothing to wait for
	told := f.told()
	slices.Sort(told)
	want := []string{"acquire " + reason, "admin " + reason, "heartbeat " + reason, "release " + reason}
	if !slices.Equal(told, want) {
		f.Errorf("told %q, want %q", told, want)
	}
}

func TestTLSAlertToPlaintext_D06(t *testing.T) {
	t.Parallel()
	address := redistest.Listen(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 512))
		_, _ = conn.Write([]byte{21, 3, 1, 0, 2, 2, 70}) // what OpenSSL says to a client that speaks no TLS
	})
	f := open(t, at("standalone", address))
	eventually(t, "every role says so", func() bool { return len(f.told()) >= 4 })
	f.stays("unavailable")
	if health := f.store.Health()[0].LastError; !strings.Contains(health, "the port speaks TLS") {
		t.Errorf("last error %q", health)
	}
}

func TestTLSInACluster_D06(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t, "127.0.0.1")
	cluster := redistest.StartCluster(t, 3, 0, redistest.NodeOptions{TLS: certificates})
	for _, node := range cluster.Primaries {
		node.Do(append(clusterACL(t), "on", ">password")...)
	}
	options := at("cluster", cluster.Primaries[0].Address())
	options.TLS = certificates.Client()
	options.Username, options.Password = "streamcap", "password"
	f := patient(t, options)
	f.wellRoles()
	f.checks()
	for n := range 30 {
		f.acquires("u"+strconv.Itoa(n), "r1", 1, slotstore.Granted, 1)
		f.acquires("u"+strconv.Itoa(n), "r2", 1, slotstore.Denied, 1)
		f.extends("u"+strconv.Itoa(n), "r1", true)
		f.releases("u"+strconv.Itoa(n), "r1", true)
	}
	if _, ok, err := f.store.Sample(t.Context()); !ok || err != nil {
		t.Errorf("sample: %t, %v", ok, err)
	}
	if users, err := f.store.Users(t.Context(), 1); err != nil {
		t.Errorf("users: %+v, %v", users, err)
	}
	f.refusedNothing(cluster.Primaries...)
}

// refusedNothing wants that no ACL has refused a command.
func (f *flavour) refusedNothing(nodes ...*redistest.Node) {
	f.Helper()
	for _, node := range nodes {
		if refused, ok := node.Do("ACL", "LOG").([]any); !ok || len(refused) > 0 {
			f.Errorf("%s refused %v", node.Address(), refused)
		}
	}
}
