package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
)

// nameServer answers on port 53 of our own loopback, so that a name can move. Names that it does not know don't exist.
type nameServer struct {
	conn *net.UDPConn

	mu        sync.Mutex
	addresses map[string]netip.Addr
}

const dnsAddress = "127.0.0.53"

// startNameServer makes it the only name server of this mount namespace.
func startNameServer() (*nameServer, error) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(dnsAddress), Port: 53})
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp("", "resolv")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // the mount keeps it
	if _, err := file.WriteString("nameserver " + dnsAddress + "\noptions timeout:1 attempts:1\n"); err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	if err := syscall.Mount(file.Name(), "/etc/resolv.conf", "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	s := &nameServer{conn: conn, addresses: make(map[string]netip.Addr)}
	go s.serve()
	return s, nil
}

// point has a name mean an address from now on.
func (s *nameServer) point(name, address string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses[name] = ip
	return nil
}

func (s *nameServer) serve() {
	packet := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(packet)
		if err != nil {
			return
		}
		if answer := s.answer(packet[:n]); answer != nil {
			_, _ = s.conn.WriteToUDPAddrPort(answer, from) // who does not get it asks again
		}
	}
}

// answer writes the answer to a query of one question: an A record that nobody may keep, no data for other types, or
// "no such name".
func (s *nameServer) answer(query []byte) []byte {
	const header, typeA = 12, 1
	var labels []string
	at := header
	for {
		if at >= len(query) || at+1+int(query[at]) > len(query) {
			return nil
		}
		length := int(query[at])
		at++
		if length == 0 {
			break
		}
		labels = append(labels, string(query[at:at+length]))
		at += length
	}
	if at+4 > len(query) {
		return nil
	}
	kind := binary.BigEndian.Uint16(query[at:])
	s.mu.Lock()
	ip, known := s.addresses[strings.ToLower(strings.Join(labels, "."))]
	s.mu.Unlock()

	answer := append([]byte(nil), query[:at+4]...)
	answer[2], answer[3] = 0x85, 0x80 // an authoritative answer
	copy(answer[6:header], make([]byte, 6))
	switch {
	case !known:
		answer[3] |= 3 // no such name
	case kind == typeA:
		answer[7] = 1
		answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
		answer = append(answer, ip.AsSlice()...)
	}
	return answer
}
