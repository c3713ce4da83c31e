package slotstore_test

import (
	"strings"
	"testing"

	"streamcap/slotstore"
	"streamcap/slotstore/redistest"
)

// TestSentinelsOverTLS has no plaintext port anywhere: the sentinels, what they watch, and what they name speak TLS alone,
// with certificates of a private CA.
func TestSentinelsOverTLS(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t, "127.0.0.1")
	sentinels := redistest.StartSentinels(t, redistest.NodeOptions{TLS: certificates}, "")

	t.Run("an acquire goes all the way", func(t *testing.T) {
		options := under(sentinels, "")
		options.TLS = certificates.Client()
		f := patient(t, options)
		f.works()
		if list := sentinels.Primary.Client.ClientList(t.Context()).Val(); !strings.Contains(list, "name=streamcap-acquire ") {
			t.Errorf("no connection of the acquire role in\n%s", list)
		}
	})

	t.Run("another CA is not trusted", func(t *testing.T) {
		options := under(sentinels, "")
		options.TLS = redistest.NewCertificates(t, "127.0.0.1").Client()
		f := patient(t, options)
		acquireFails(t, f.store, slotstore.Unavailable)
		if cause := f.store.Health()[0].LastError; !strings.Contains(cause, "certificate signed by unknown authority") {
			t.Errorf("last error %q", cause)
		}
	})

	t.Run("no TLS is no way in", func(t *testing.T) {
		acquireFails(t, patient(t, under(sentinels, "")).store, slotstore.Unavailable)
	})

	t.Run("the primary is killed", func(t *testing.T) {
		options := under(sentinels, "")
		options.TLS = certificates.Client()
		f := open(t, options)
		f.wellRoles()
		f.failsOver(sentinels, sentinels.Primary.Kill)
		f.soonChecks()
	})
}
