package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// envPrefix begins the name of every setting.
const envPrefix = "STREAMCAP_"

// config is everything that an operator can set, parsed and checked; it is
// filled by loadConfig alone and never changes afterwards. Each field names its
// variable (without the prefix) and its default in its tags, and nowhere else;
// `example` is what a mistake shows where the default is no help, `oneOf` lists
// the only legal words, and `secret` keeps a value out of every message.
//
// All durations are at least a millisecond and at most maxDuration.
type config struct {
	// Listen serves nginx and the backends, AdminListen people and Prometheus.
	// Port 0 takes any free port.
	Listen      listenAddress `env:"LISTEN"       envDefault:"127.0.0.1:9180"`
	AdminListen listenAddress `env:"ADMIN_LISTEN" envDefault:"127.0.0.1:9181"`
	// NginxLogListen takes nginx's end-of-request lines, as datagrams: its
	// network is udp or unixgram. The zero value is off.
	NginxLogListen listenAddress `env:"NGINX_LOG_LISTEN" example:"127.0.0.1:9514"`
	// SocketMode is what the files of unix: listeners get, written in octal.
	SocketMode os.FileMode `env:"SOCKET_MODE" envDefault:"0666"`

	// Redis says where the slots are kept; its zero value is the embedded
	// in-memory store.
	Redis redisConfig
	// KeyPrefix begins every key in Redis. Two environments on one Redis need
	// two prefixes.
	KeyPrefix string `env:"KEY_PREFIX" envDefault:"streamcap"`

	// DefaultLimit is the cap of a user without a known plan or a limit of its
	// own, Limits that of each plan: -1 is unlimited (counted, never denied),
	// 0 allows nothing.
	DefaultLimit int    `env:"DEFAULT_LIMIT" envDefault:"1"`
	Limits       limits `env:"LIMITS"        example:"free:1,paid:3"`

	// SlotTTL is how long a slot lives after its last heartbeat. It is at least
	// three heartbeat intervals, so that two lost heartbeats end no stream.
	SlotTTL time.Duration `env:"SLOT_TTL" envDefault:"120s"`
	// InitialTTL is the lease of a grant and of a renewing acquire, until the
	// first heartbeat; unset, it is SlotTTL.
	InitialTTL time.Duration `env:"INITIAL_TTL" example:"30s"`
	// HeartbeatInterval is told to the backends with every slot.
	HeartbeatInterval time.Duration `env:"HEARTBEAT_INTERVAL" envDefault:"20s"`
	// MaxStreamAge is when a heartbeat ends a stream for good; 0 is never.
	MaxStreamAge time.Duration `env:"MAX_STREAM_AGE" envDefault:"0" example:"2h"`

	// Enforce false is shadow mode: count and report, never deny. It is the one
	// bool whose zero value is not the default; the contract has named it.
	Enforce bool `env:"ENFORCE" envDefault:"true"`
	// OnStoreFailure is what an acquire gets while the store can't answer.
	OnStoreFailure string `env:"ON_STORE_FAILURE" envDefault:"open" oneOf:"open closed local"`
	// OnMissingID is what an acquire without a user or request id gets.
	OnMissingID string `env:"ON_MISSING_ID" envDefault:"allow" oneOf:"allow deny"`
	// DenyStatus is the status of a denial: nginx's auth_request takes 403
	// alone, Traefik and Caddy hand on a 429.
	DenyStatus int `env:"DENY_STATUS" envDefault:"403" oneOf:"403 429"`

	// The budgets bound how long a caller waits for the store, each for its role.
	AcquireTimeout   time.Duration `env:"ACQUIRE_TIMEOUT"   envDefault:"100ms"`
	HeartbeatTimeout time.Duration `env:"HEARTBEAT_TIMEOUT" envDefault:"200ms"`
	ReleaseTimeout   time.Duration `env:"RELEASE_TIMEOUT"   envDefault:"200ms"`
	AdminTimeout     time.Duration `env:"ADMIN_TIMEOUT"     envDefault:"2s"`

	// BackendToken is what /heartbeat and /release ask for as a bearer token;
	// empty asks for nothing.
	BackendToken string `env:"BACKEND_TOKEN" example:"the output of: openssl rand -hex 32" secret:"true"`
	// AdminUsers are the operators; without any there is no admin page.
	AdminUsers adminUsers `env:"ADMIN_USERS" example:"alice:<the 64 hex digits of: printf %s TOKEN | sha256sum>" secret:"true"`
	// AuditLog is the file that keeps what operators did; empty is the
	// service's log.
	AuditLog string `env:"AUDIT_LOG" example:"/var/log/streamcap/audit.log"`

	LogLevel  string `env:"LOG_LEVEL"  envDefault:"info" oneOf:"debug info warn error"`
	LogFormat string `env:"LOG_FORMAT" envDefault:"json" oneOf:"json console"`
}

// setting is one variable, as the tags of config describe it.
type setting struct {
	name  string // without the prefix
	index []int  // of its field in config
	tags  reflect.StructTag
}

// settings lists every variable in the order of the struct, which is the order
// of the README's table and of the mistakes.
func settings() []setting { return settingsOf(reflect.TypeFor[config](), nil) }

func settingsOf(structure reflect.Type, at []int) []setting {
	var found []setting
	for i := range structure.NumField() {
		field, index := structure.Field(i), append(slices.Clone(at), i)
		if name := field.Tag.Get("env"); name != "" {
			found = append(found, setting{name: name, index: index, tags: field.Tag})
		} else if field.Type == reflect.TypeFor[redisConfig]() {
			found = append(found, settingsOf(field.Type, index)...)
		}
	}
	return found
}

func (s setting) secret() bool { return s.tags.Get("secret") != "" }

func (s setting) example() string {
	if example, ok := s.tags.Lookup("example"); ok {
		return example
	}
	return s.tags.Get("envDefault")
}

// words are the only values that the setting takes; none means any.
func (s setting) words() []string { return strings.Fields(s.tags.Get("oneOf")) }
