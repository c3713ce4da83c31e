package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are a private CA and a server's certificate that it signed.
type Certificates struct {
	CA   string // file of the CA's certificate, in PEM
	cert string
	key  string
	pool *x509.CertPool
}

// NewCertificates makes a CA, and a certificate for the given IP addresses or names.
func NewCertificates(t testing.TB, hosts ...string) *Certificates {
	t.Helper()
	dir := t.TempDir()
	c := &Certificates{
		CA: filepath.Join(dir, "ca.pem"), cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"),
		pool: x509.NewCertPool(),
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
	}
	ca, server := template(1, "CA of "+t.Name()), template(2, "server")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	caKey, serverKey := newKey(t), newKey(t)
	caDER := sign(t, ca, ca, caKey, caKey)
	writePEM(t, c.CA, "CERTIFICATE", caDER)
	writePEM(t, c.cert, "CERTIFICATE", sign(t, server, ca, serverKey, caKey))
	der, err := x509.MarshalECPrivateKey(serverKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, c.key, "EC PRIVATE KEY", der)
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	c.pool.AddCert(parsed)
	return c
}

// Client is the configuration of a client that trusts the CA.
func (c *Certificates) Client() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.pool}
}

func (c *Certificates) args() []string {
	return []string{
		"--tls-cert-file", c.cert, "--tls-key-file", c.key, "--tls-ca-cert-file", c.CA, "--tls-auth-clients", "no",
		"--tls-cluster", "yes", "--tls-replication", "yes",
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, certificate, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
