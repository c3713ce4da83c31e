package main

import (
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

// trouble tells the operator of a store that can't answer: who was let through, when a breaker opened and closed, and
// what a self-test found.
type trouble struct {
	log   zerolog.Logger
	redis redisConfig
	lines throttle // one a second for each role, and fewer as an outage goes on
}

func newTrouble(log zerolog.Logger, redis redisConfig) *trouble {
	return &trouble{log: log, redis: redis, lines: throttle{every: time.Second, most: time.Minute}}
}

// failed takes a call that the store did not answer.
func (t *trouble) failed(role string, err error) {
	t.lines.say(role, func(count int) {
		line := t.log.Warn()
		if role != slotstore.RoleAdmin { // nobody is let through by a look that failed
			line.Str("event", "failopen")
		}
		line.Str("role", role).Str("reason", string(slotstore.ReasonOf(err))).
			Int("count", count).Err(err).Msg("the store could not answer")
	})
}

func (t *trouble) circuit(c slotstore.Circuit) {
	if c.Open {
		t.log.Error().Str("event", "redis_circuit_open").Str("role", c.Role).Str("reason", string(c.Reason)).
			Str("hint", hint(c.Reason, t.redis)).Msg("the store is not asked until it answers a probe")
		return
	}
	t.lines.forget(c.Role)
	t.log.Warn().Str("event", "redis_circuit_closed").Str("role", c.Role).Str("reason", string(c.Reason)).
		Float64("open_seconds", c.OpenFor.Seconds()).Int("failed_open", c.FailedOpen).Msg("the store answers again")
}

func (t *trouble) selfTest(role string, err error) {
	if err == nil {
		t.log.Info().Str("event", "self_test").Str("role", role).Msg("the role can do its work")
		return
	}
	reason := slotstore.ReasonOf(err)
	t.log.Error().Str("event", "self_test").Str("role", role).Str("reason", string(reason)).Err(err).
		Str("hint", hint(reason, t.redis)).Msg("the role can't do its work")
}

// eviction tells what Redis does when it is full. Forgetting is this data's right failure mode: somebody runs one stream
// too many. Under noeviction every acquire fails open instead.
func (t *trouble) eviction(policy string, maxBytes int64) {
	level, message := zerolog.InfoLevel, "Redis's eviction policy"
	if policy == "noeviction" && maxBytes > 0 {
		level, message = zerolog.WarnLevel, "when Redis is full it will refuse every acquire, which fails open: set maxmemory-policy to allkeys-lru"
	}
	t.log.WithLevel(level).Str("event", "eviction_policy").Str("policy", policy).Int64("maxmemory_bytes", maxBytes).Msg(message)
}

// hint says what to do about a store that gives this reason.
func hint(reason slotstore.Reason, redis redisConfig) string {
	switch reason {
	case slotstore.Timeout:
		if redis.TLS != nil {
			return "is the address right, does a firewall drop the packets, is Redis busy, does this port speak TLS at all (redis:// if not)?"
		}
		return "is the address right, does a firewall drop the packets, is Redis busy, does the port speak TLS (rediss://)?"
	case slotstore.Unavailable:
		if redis.TLS != nil {
			return "is Redis up and not busy with a script, does this port speak TLS, and does STREAMCAP_REDIS_CA_FILE hold the CA that signed its certificate?"
		}
		switch {
		case redis.Network == "unix":
			return "is Redis up and not busy with a script, is the path of its socket right, and may this user open it?"
		case redis.Mode == "sentinel":
			return "is Redis up and not busy with a script, are its sentinels, is STREAMCAP_REDIS_SENTINEL_MASTER right, and do the ports want TLS (rediss://)?"
		case redis.Mode == "cluster":
			return "is Redis up and not busy with a script, does the cluster serve all its slots, and do the ports want TLS (rediss://)?"
		}
		return "is Redis up and not busy with a script, is the name right, and does the port want TLS (rediss://)?"
	case slotstore.OOM:
		return "Redis is full and may not forget: raise maxmemory, or set maxmemory-policy to allkeys-lru"
	case slotstore.ReadOnly:
		return "this is a replica, or a primary that refuses writes: use the primary's address"
	case slotstore.NoPerm:
		return "check the user, the password and the ACL line of the README"
	case slotstore.Moved:
		return "this is a node of a cluster: set STREAMCAP_REDIS_MODE=cluster"
	case slotstore.WrongType:
		return "another program writes under this prefix: set STREAMCAP_KEY_PREFIX"
	case slotstore.Overload:
		return "Redis is at its maxclients"
	case slotstore.Internal:
		if redis.Mode != "standalone" {
			return "is this address a Redis in " + redis.Mode + " mode? For a single one set STREAMCAP_REDIS_MODE=standalone"
		}
	case slotstore.BreakerOpen:
		return "/healthz has the error that opened it"
	}
	return "is this address a Redis of version 5 or newer, which runs scripts with TIME, and has it this database number?"
}
