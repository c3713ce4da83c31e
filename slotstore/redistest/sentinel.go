package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// Sentinels are three sentinels that watch over a primary and its replica by the name "mymaster".
type Sentinels struct {
	Sentinels        []*Node
	Primary, Replica *Node // as they were at the start
}

// StartSentinels returns once the sentinels know each other and the replica. They take the primary for dead after half a
// second. The options are the data nodes'; the sentinels want sentinelPassword, if there is one, and speak TLS as they do.
func StartSentinels(t testing.TB, options NodeOptions, sentinelPassword string) *Sentinels {
	t.Helper()
	s := &Sentinels{}
	if options.Password != "" {
		options.Args = append(options.Args, "--masterauth", options.Password)
	}
	s.Primary = StartNode(t, options)
	options.Args = append(options.Args, "--replicaof", fmt.Sprintf("%s %s", s.Primary.Host, s.Primary.Port))
	s.Replica = StartNode(t, options)
	wait(t, "the replica follows", func() bool { return s.Replica.Info("replication", "master_link_status:up") })
	for range 3 {
		sentinel := NodeOptions{sentinel: true, Password: sentinelPassword, TLS: options.TLS}
		if sentinelPassword != "" {
			sentinel.Args = []string{"--sentinel", "sentinel-pass", sentinelPassword}
		}
		node := StartNode(t, sentinel)
		node.Do("SENTINEL", "MONITOR", "mymaster", s.Primary.Host, s.Primary.Port, "2")
		node.Do("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "500", "failover-timeout", "3000")
		if options.Password != "" {
			node.Do("SENTINEL", "SET", "mymaster", "auth-pass", options.Password)
		}
		s.Sentinels = append(s.Sentinels, node)
	}
	s.Wait(t)
	return s
}

// Wait returns once the sentinels know each other and the replica.
func (s *Sentinels) Wait(t testing.TB) {
	t.Helper()
	for _, node := range s.Sentinels {
		wait(t, "the sentinels know each other and the replica", func() bool {
			return node.Info("sentinel", "master0:name=mymaster,status=ok,address="+s.Primary.Address()+",slaves=1,sentinels=3")
		})
	}
}

// Names says whether any sentinel takes the node for the primary.
func (s *Sentinels) Names(node *Node) bool {
	for _, sentinel := range s.Sentinels {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond) // one may hang
		address, _ := sentinel.Client.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster").StringSlice()
		cancel()
		if len(address) == 2 && net.JoinHostPort(address[0], address[1]) == node.Address() {
			return true
		}
	}
	return false
}
