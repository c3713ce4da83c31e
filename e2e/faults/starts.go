package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// misfit is a store that does not fit when the sidecar starts, and its repair.
type misfit struct {
	name    string
	needs   func(*machine) string
	store   func(context.Context, *world) (settings []string, err error)
	reasons []string // one of which the self-test must name
	repair  func(context.Context, *stage) error
}

// starts are the rows about a start with a store that does not fit.
func starts() []check {
	misfits := []misfit{
		{name: "down", store: noRedis, reasons: []string{"unavailable"}, repair: redisComesUp},
		{
			name: "unresolvable", needs: func(m *machine) string { return m.names }, store: unnamedRedis,
			reasons: []string{"unavailable"},
			repair: func(_ context.Context, s *stage) error {
				host, _ := splitAddress(s.redis.address)
				return s.machine.resolver.point(lateName, host)
			},
		},
		{name: "wrong password", store: lockedRedis, reasons: []string{"noperm"}, repair: func(ctx context.Context, s *stage) error {
			return s.redis.do(ctx, "CONFIG", "SET", "requirepass", "theirs")
		}},
		{name: "TLS mismatch", store: plaintextRedis, reasons: []string{"unavailable", "timeout"}, repair: redisComesBack},
		{name: "ACL too narrow", store: narrowRedis, reasons: []string{"noperm"}, repair: func(ctx context.Context, s *stage) error {
			return s.redis.do(ctx, publishedACL(s.opts.nginxConf)...)
		}},
	}
	var rows []check
	for _, m := range misfits {
		rows = append(rows, check{
			name: "start with Redis " + m.name, needs: m.needs,
			world: func(*machine) setup { return setup{store: m.store} },
			do:    m.play,
		})
	}
	return rows
}

// play starts a sidecar and repairs the store under it.
func (m misfit) play(ctx context.Context, s *stage, out *result) error {
	began := s.sidecar.began
	served := s.sidecar.served.Sub(began)
	out.figure(served <= time.Second, "serving after", round(served).String(), "<= 1s")
	var controls sync.WaitGroup
	controls.Go(s.direct.controls)
	first := s.direct.acquire("misfit", "r")
	controls.Wait()
	_, control := s.direct.taken()
	machine := noiseOf(control, began)
	out.figure(first.slot == "failopen" && first.took <= acquireBound+machine.longest, "an acquire then",
		fmt.Sprintf("%s %s after %v, control requests %v", first.slot, first.reason, round(first.took), round(machine.longest)),
		"failopen within "+acquireBound.String())
	var named []string
	err := eventually(ctx, 6*time.Second, "the log names the cause for each role", func() bool {
		lines, err := s.sidecar.lines()
		named = nil
		for _, line := range lines {
			if line.Event == "self_test" && line.Level == "error" && slices.Contains(m.reasons, line.Reason) {
				named = append(named, line.Role+" "+line.Reason+" "+line.Time.Sub(began).Round(time.Millisecond).String())
				if line.Time.Sub(began) > 5*time.Second {
					out.broken("the cause is named late: %v", line.Time.Sub(began))
				}
			}
		}
		return err == nil && len(named) >= 4
	})
	out.figure(err == nil, "cause named by", strings.Join(named, ", "), "4 roles within 5s")
	if err = m.repair(ctx, s); err != nil {
		return err
	}
	repaired := time.Now()
	err = eventually(ctx, 5*time.Second, "the cap is enforced", func() bool {
		user := fmt.Sprintf("repaired-%d", s.direct.count.Add(1))
		return s.direct.acquire(user, "first").slot == "held" && s.direct.acquire(user, "second").slot == "denied"
	})
	after := time.Since(repaired)
	out.figure(err == nil && after <= backBound, "enforcing after the repair", round(after).String(), "<= "+backBound.String())
	return nil
}

// noRedis knows where Redis will be.
func noRedis(_ context.Context, w *world) ([]string, error) {
	w.redis = w.plannedRedis(freeAddress("127.0.0.1"))
	return []string{"REDIS_URL=redis://" + w.redis.address}, nil
}

func redisComesUp(ctx context.Context, s *stage) error {
	return s.startRedisAgain(ctx, s.redis)
}

// redisComesBack starts it with TLS, where it was.
func redisComesBack(ctx context.Context, s *stage) error {
	if err := s.redis.end(syscall.SIGKILL); err != nil {
		return err
	}
	p, err := s.launch("redis", nil, "redis-server", s.redis.args...)
	if err != nil {
		return err
	}
	s.redis.process = p
	return eventually(ctx, 10*time.Second, "Redis listens again", func() bool { return listens(ctx, s.redis.address) })
}

const lateName = "late.test"

func unnamedRedis(ctx context.Context, w *world) ([]string, error) {
	if _, err := oneRedis(ctx, w); err != nil {
		return nil, err
	}
	_, port := splitAddress(w.redis.address)
	return []string{"REDIS_URL=redis://" + lateName + ":" + port}, nil
}

// lockedRedis wants another password. The suite's own connection stays signed in.
func lockedRedis(ctx context.Context, w *world) ([]string, error) {
	settings, err := oneRedis(ctx, w)
	if err != nil {
		return nil, err
	}
	return append(settings, "REDIS_PASSWORD=theirs"), w.redis.do(ctx, "CONFIG", "SET", "requirepass", "ours")
}

// narrowRedis has a user who may do nothing but run scripts.
func narrowRedis(ctx context.Context, w *world) ([]string, error) {
	settings, err := oneRedis(ctx, w)
	if err != nil {
		return nil, err
	}
	return append(settings, "REDIS_USERNAME=streamcap", "REDIS_PASSWORD=password"),
		w.redis.do(ctx, "ACL", "SETUSER", "streamcap", "on", ">password", "resetkeys", "~streamcap:*", "-@all", "+evalsha", "+eval")
}

// publishedACL is the README's line.
func publishedACL(nginxConf string) []any {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(nginxConf), "README.md"))
	if err != nil {
		return []any{"ACL", "WHOAMI"} // the row then fails for want of a repair
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "ACL SETUSER streamcap ") {
			var order []any
			for word := range strings.FieldsSeq(line) {
				order = append(order, word)
			}
			return order
		}
	}
	return []any{"ACL", "WHOAMI"}
}

// plaintextRedis speaks no TLS, until it is started again.
func plaintextRedis(ctx context.Context, w *world) ([]string, error) {
	if _, err := oneRedis(ctx, w); err != nil {
		return nil, err
	}
	if err := writeCertificates(w.dir); err != nil {
		return nil, err
	}
	_, port := splitAddress(w.redis.address)
	file := func(name string) string { return filepath.Join(w.dir, name) }
	w.redis.args = append(w.redis.args, "--port", "0", "--tls-port", port, "--tls-cert-file", file("server.crt"),
		"--tls-key-file", file("server.key"), "--tls-ca-cert-file", file("ca.crt"), "--tls-auth-clients", "no")
	return []string{"REDIS_URL=rediss://" + w.redis.address, "REDIS_CA_FILE=" + file("ca.crt")}, nil
}

// writeCertificates makes a CA and a server certificate for 127.0.0.1.
func writeCertificates(dir string) error {
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "faults CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":     {Type: "CERTIFICATE", Bytes: caDER},
		"server.crt": {Type: "CERTIFICATE", Bytes: serverDER},
		"server.key": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
