package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"streamcap/slotstore"
)

// runCheck takes, extends, lists and releases one slot under the probe key, each by the role whose work it is, and
// prints a line a role. It leaves nothing behind.
func runCheck(ctx context.Context, cfg config, stdout io.Writer) int {
	fmt.Fprintf(stdout, "store %s, prefix %s\n", cfg.Redis, cfg.KeyPrefix)
	if cfg.Redis.Mode == "" {
		fmt.Fprintln(stdout, "ok: the settings are right; the embedded store needs nothing")
		return exitOK
	}
	store := slotstore.NewRedis(redisOptions(cfg), slotstore.Lifetimes{Slot: 10 * time.Second, Initial: 10 * time.Second}, slotstore.Events{})
	defer store.Close() //nolint:errcheck // the answers are in
	code := exitOK
	for _, probe := range store.Check(ctx) {
		if probe.Err == nil {
			fmt.Fprintf(stdout, "%-10s ok      %s\n", probe.Role, probe.Took.Round(10*time.Microsecond))
			continue
		}
		code = exitFailure
		reason := slotstore.ReasonOf(probe.Err)
		fmt.Fprintf(stdout, "%-10s FAILED  %s: %v; %s\n", probe.Role, reason, probe.Err, hint(reason, cfg.Redis))
	}
	return code
}

// hint says what to do about a store that gives this reason.
func hint(reason slotstore.Reason, redis redisConfig) string {
	switch reason {
	case slotstore.Timeout:
		return "is the address right, does a firewall drop the packets, is Redis busy, does the port speak TLS (rediss://)?"
	case slotstore.Unavailable:
		if redis.TLS != nil {
			return "is Redis up, does this port speak TLS, and does STREAMCAP_REDIS_CA_FILE hold the CA that signed its certificate?"
		}
		return "is Redis up, is the name right, and does the port want TLS (rediss://)?"
	case slotstore.OOM:
		return "Redis is full and may not forget: raise maxmemory or set maxmemory-policy to allkeys-lru"
	case slotstore.ReadOnly:
		return "this is a replica, or a primary that refuses writes: use the primary's address"
	case slotstore.NoPerm:
		return "check the user, the password and the ACL line of the README"
	case slotstore.Moved:
		return "this is a node of a cluster: set STREAMCAP_REDIS_MODE=cluster"
	case slotstore.WrongType:
		return "another program writes under this prefix: set STREAMCAP_KEY_PREFIX"
	case slotstore.Overload:
		return "Redis is at maxclients"
	case slotstore.BreakerOpen, slotstore.Internal:
	}
	return "is this address a Redis?"
}
