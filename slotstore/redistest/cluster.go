package redistest

import (
	"fmt"
	"strconv"
	"testing"
)

// Cluster is a Redis Cluster of the test's own.
type Cluster struct {
	Primaries, Replicas []*Node // as they were at the start: Replicas[i] follows Primaries[i]
}

const slots = 16384

// StartCluster starts primaries, each with an equal part of the slots, and replicas, and returns once every node knows
// all of them. The nodes take another one for dead after half a second.
func StartCluster(t testing.TB, primaries, replicas int, options NodeOptions) *Cluster {
	t.Helper()
	c := &Cluster{}
	var nodes []*Node
	for i := range primaries + replicas {
		of := options
		of.Args = append([]string{
			"--cluster-enabled", "yes", "--cluster-port", FreePort(t), "--cluster-node-timeout", "500",
			"--cluster-replica-validity-factor", "0",
		}, options.Args...)
		node := StartNode(t, of)
		nodes = append(nodes, node)
		if i < primaries {
			c.Primaries = append(c.Primaries, node)
			first, last := i*slots/primaries, (i+1)*slots/primaries-1
			node.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last))
			node.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		} else {
			c.Replicas = append(c.Replicas, node)
		}
	}
	for _, node := range nodes[1:] {
		bus := "0"
		for i, arg := range node.command {
			if arg == "--cluster-port" {
				bus = node.command[i+1]
			}
		}
		nodes[0].Do("CLUSTER", "MEET", node.Host, node.Port, bus)
	}
	everybody := fmt.Sprint("cluster_known_nodes:", len(nodes))
	for _, node := range nodes {
		wait(t, "every node knows all others", func() bool { return node.Info("cluster", everybody) })
	}
	for i, replica := range c.Replicas {
		replica.Do("CLUSTER", "REPLICATE", c.Primaries[i].ID())
	}
	for i, replica := range c.Replicas {
		wait(t, "the replica follows", func() bool { return replica.Info("replication", "master_link_status:up") })
		wait(t, "the primary feeds", func() bool { return c.Primaries[i].Info("replication", "connected_slaves:1") })
	}
	for _, node := range nodes {
		wait(t, "the cluster serves", func() bool { return node.Info("cluster", "cluster_state:ok") })
	}
	return c
}

// ID is the node's name in its cluster.
func (n *Node) ID() string {
	n.t.Helper()
	id, ok := n.Do("CLUSTER", "MYID").(string)
	if !ok {
		n.t.Fatal("CLUSTER MYID gave no text")
	}
	return id
}

// Addresses are those of the nodes.
func Addresses(nodes []*Node) []string {
	var all []string
	for _, node := range nodes {
		all = append(all, node.Address())
	}
	return all
}

// Slot is the slot of a hash tag.
func Slot(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}
