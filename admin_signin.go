package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// signIn lets operators through: HTTP Basic with their name and token. Wrong sign-ins are throttled for each peer, and a
// right one always passes, so that nobody can lock an operator out.
type signIn struct {
	operators adminUsers
	wrong     wrongSignIns
	log       zerolog.Logger
	lines     throttle // one a second for each peer, and fewer as it goes on
}

type operatorKey struct{}

// operatorOf is who has signed in. Only what stands behind [signIn.guard] may ask.
func operatorOf(r *http.Request) string {
	name, _ := r.Context().Value(operatorKey{}).(string)
	return name
}

func (s *signIn) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, token, _ := r.BasicAuth()
		known, right := s.check(name, token)
		if right {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, name)))
			return
		}
		if len(r.Header["Authorization"]) > 0 { // else it is a browser that is about to ask
			if wait := s.refuse(r, name, known); wait > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
				problem{http.StatusTooManyRequests, "too many wrong sign-ins from this address; a right one passes all the same"}.write(w)
				return
			}
		}
		w.Header().Set("Www-Authenticate", `Basic realm="streamcap", charset="UTF-8"`)
		problem{http.StatusUnauthorized, "sign in with an operator's name and token, as STREAMCAP_ADMIN_USERS names them"}.write(w)
	})
}

// check costs the same for every name and token: each operator is compared, whoever has matched.
func (s *signIn) check(name, token string) (known, right bool) {
	nameHash, tokenHash := sha256.Sum256([]byte(name)), sha256.Sum256([]byte(token))
	var names, both int
	for operator, want := range s.operators {
		operatorHash := sha256.Sum256([]byte(operator))
		same := subtle.ConstantTimeCompare(nameHash[:], operatorHash[:])
		names |= same
		both |= same & subtle.ConstantTimeCompare(tokenHash[:], want[:])
	}
	return names == 1, both == 1
}

// refuse notes a wrong sign-in, and returns how long the peer's wrong ones are throttled.
func (s *signIn) refuse(r *http.Request, name string, known bool) time.Duration {
	peer := peerOf(r)
	wait := s.wrong.note(network(peer), time.Now())
	if !known {
		name = "" // who types her token into the field for the name does not find it in a log
	}
	s.lines.say(network(peer), func(count int) {
		s.log.Warn().Str("peer", peer).Str("operator", name).Int("count", count).Bool("throttled", wait > 0).Msg("a wrong sign-in")
	})
	return wait
}

// pageToken is what the page alone is told, for the operator who reads it: the same on all sidecars, and no secret of
// hers can be had from it.
func (s *signIn) pageToken(operator string) string {
	hash := s.operators[operator]
	mac := hmac.New(sha256.New, hash[:])
	mac.Write([]byte("streamcap: a release from the page"))
	return hex.EncodeToString(mac.Sum(nil))
}

// peerOf is the address at the other end of the connection. X-Forwarded-For and its kind are not read: whoever can
// connect can write them, to put her wrong sign-ins and releases down to somebody else. Behind nginx the peer is nginx,
// whose own log knows the rest.
func peerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "unix"
	}
	return host
}

// network is what wrong sign-ins are counted by: an IPv4 address, or the /64 that an IPv6 client can choose freely from.
func network(peer string) string {
	address, err := netip.ParseAddr(peer)
	if err != nil {
		return peer
	}
	address = address.Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

const (
	wrongMost   = 10
	wrongWithin = time.Minute
	// wrongPeers bounds what strangers can make us remember; beyond it, peers that are not known share one count.
	wrongPeers = 10_000
	// wrongSweep is how often those are forgotten whose minute is over.
	wrongSweep = time.Second
)

// wrongSignIns remembers the last wrong sign-ins of each peer. Its zero value is ready.
type wrongSignIns struct {
	mu    sync.Mutex
	peers map[string]*[wrongMost]time.Time // latest first
	swept time.Time
}

// note takes a wrong sign-in, and returns how long the peer has to wait where ten came within the last minute already.
// Those that are throttled don't make it longer.
func (s *wrongSignIns) note(peer string, now time.Time) (wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers == nil {
		s.peers = make(map[string]*[wrongMost]time.Time)
	}
	last := s.peers[peer]
	if last == nil {
		if len(s.peers) >= wrongPeers && now.Sub(s.swept) >= wrongSweep { // not for each stranger: it looks at all of them
			s.swept = now
			maps.DeleteFunc(s.peers, func(_ string, times *[wrongMost]time.Time) bool { return now.Sub(times[0]) >= wrongWithin })
		}
		if len(s.peers) >= wrongPeers {
			peer = "" // no address
		}
		if last = s.peers[peer]; last == nil {
			last = new([wrongMost]time.Time)
			s.peers[peer] = last
		}
	}
	if tenth := last[wrongMost-1]; !tenth.IsZero() && now.Sub(tenth) < wrongWithin {
		return tenth.Add(wrongWithin).Sub(now)
	}
	copy(last[1:], last[:])
	last[0] = now
	return 0
}

// sameOrigin says whether a change may come from where it comes from: our own page, or no browser at all.
// [http.CrossOriginProtection] knows by Sec-Fetch-Site, which browsers send over https and to loopback, also through a
// proxy that changes the host and the path; without it, by Origin against Host. Over plain http through a proxy that
// changes Host (nginx's default) our own page fails that: then it has to hold the token that only its reader was told.
func (s *signIn) sameOrigin(r *http.Request) error {
	err := new(http.CrossOriginProtection).Check(r)
	if err == nil || r.Header.Get("Sec-Fetch-Site") != "" {
		return err
	}
	want := s.pageToken(operatorOf(r))
	if subtle.ConstantTimeCompare([]byte(r.Header.Get(headerPageToken)), []byte(want)) == 1 {
		return nil
	}
	return fmt.Errorf("%w; behind a proxy, hand on the Host that the browser sent", err)
}

// headerPageToken is sent by the page's script. No other site can send it: a browser asks first, and we don't allow it.
const headerPageToken = "X-Page-Token"
