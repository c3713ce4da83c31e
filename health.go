package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"streamcap/slotstore"
)

// health answers /healthz: 200 for as long as the process serves, with Redis up or down, without waiting for Redis. An
// orchestrator that took the sidecar away because Redis is away would take the open door away with it.
type health struct {
	store     slotstore.Store
	storeName string // memory or redis
}

// healthReport is the body of /healthz.
type healthReport struct {
	Status  string                `json:"status"` // ok or degraded
	Store   string                `json:"store"`
	Roles   map[string]roleReport `json:"roles"`
	Version string                `json:"version"`
}

type roleReport struct {
	Breaker   string `json:"breaker"`
	LastError string `json:"last_error"`
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		problem{http.StatusMethodNotAllowed, r.Method + " is not allowed here; use GET or HEAD"}.write(w)
		return
	}
	roles := h.store.Health()
	report := healthReport{Status: "ok", Store: h.storeName, Roles: make(map[string]roleReport), Version: buildVersion()}
	for _, role := range roles {
		report.Roles[role.Role] = roleReport{role.Breaker, role.LastError}
	}
	if degraded(roles) {
		report.Status = "degraded"
	}
	w.Header().Set("Cache-Control", "no-store")
	body, err := json.Marshal(report)
	if err != nil {
		body = []byte(`{"status":"degraded"}`) // it holds strings alone, so this never happens
	}
	writeJSON(w, http.StatusOK, body)
}

// degraded says whether any role is unwell.
func degraded(roles []slotstore.Health) bool {
	return slices.ContainsFunc(roles, func(h slotstore.Health) bool { return h.Breaker != "closed" || h.LastError != "" })
}

// runHealthcheck asks the process's own /healthz, for Docker's HEALTHCHECK. It reads STREAMCAP_LISTEN alone, so that no
// other setting, right or wrong, changes what it says.
func runHealthcheck(ctx context.Context, environ []string, stdout, stderr io.Writer) int {
	address, err := loadListen(environ)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitSettings
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	body, err := fetchHealth(ctx, address)
	if err != nil {
		fmt.Fprintf(stderr, "streamcap: healthcheck: %v\n", err)
		return exitFailure
	}
	fmt.Fprintf(stdout, "%s\n", body)
	return exitOK
}

func fetchHealth(ctx context.Context, address listenAddress) ([]byte, error) {
	target := reachable(address)
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, target.Network, target.Address)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://streamcap/healthz", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // nothing is lost with it
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", address, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return []byte(strings.TrimSpace(string(body))), err
}

// reachable is where a listener on every address is found from here.
func reachable(address listenAddress) listenAddress {
	host, port, err := net.SplitHostPort(address.Address)
	if address.Network != "tcp" || err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return listenAddress{Network: "tcp", Address: net.JoinHostPort(host, port)}
}
