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
