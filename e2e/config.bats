#!/usr/bin/env bats
# Settings from outside: what is taken, what is refused, and how that is said.

load lib

# refused NAME=value...: exit 2 from serving and from check, each named with what it held.
refused() {
    local setting command
    for command in '' check; do
        streamcap "$command" "$@"
        eq "$STATUS" 2 "exit status with $*"
        for setting in "$@"; do
            grep -qF "STREAMCAP_${setting%%=*}=" "$DIR/command.err" || fail "$setting is not named: $(cat "$DIR/command.err")"
        done
        [[ $(cat "$DIR/command.err") == *"(example: "* ]] || fail "no example: $(cat "$DIR/command.err")"
    done
}

# taken NAME=value...: the settings are right, with the embedded store.
taken() {
    streamcap check "$@"
    eq "$STATUS" 0 "exit status with $*: $(cat "$DIR/command.err")"
}

@test "C01: a duration carries a unit" {
    local value
    for value in 120s 2m ' 120s' '120s ' 120000ms 1h30m; do taken "SLOT_TTL=$value"; done
    for value in 120 '120 s' '2 minutes' -5s 0 1e3s 500us '"120s"' '120s,'; do
        refused "SLOT_TTL=$value"
        grep -qF "STREAMCAP_SLOT_TTL=" "$DIR/command.err"
    done
    taken MAX_STREAM_AGE=0
    refused MAX_STREAM_AGE=1
}

@test "C02: empty is unset, for every setting" {
    local name
    for name in LISTEN ADMIN_LISTEN NGINX_LOG_LISTEN SOCKET_MODE REDIS_URL REDIS_USERNAME REDIS_PASSWORD REDIS_PASSWORD_FILE \
        REDIS_MODE REDIS_SENTINEL_MASTER REDIS_CA_FILE KEY_PREFIX DEFAULT_LIMIT LIMITS SLOT_TTL INITIAL_TTL HEARTBEAT_INTERVAL \
        MAX_STREAM_AGE ENFORCE ON_STORE_FAILURE ON_MISSING_ID DENY_STATUS ACQUIRE_TIMEOUT HEARTBEAT_TIMEOUT RELEASE_TIMEOUT \
        ADMIN_TIMEOUT BACKEND_TOKEN ADMIN_USERS AUDIT_LOG LOG_LEVEL LOG_FORMAT; do
        taken "$name="
        taken "$name=  "
    done
    # Empty and still at work: the default limit of 1 denies, and the admin page is shut.
    start_streamcap DEFAULT_LIMIT= SLOT_TTL= ADMIN_USERS= ENFORCE= ON_STORE_FAILURE=
    acquire u1 r1
    answer 204 held
    acquire u1 r2
    answer 403 denied stream_limit_reached
    within "$(header Retry-After)" 119 120 Retry-After
    request "$SC_ADMIN/admin/"
    eq "$STATUS" 404
}

@test "C04: a password of any characters by its own setting or file; as it is in the URL it is an error that doesn't show it" {
    local password='p@ss/w#rd%:?&+"'
    start_redis --requirepass "$password"
    redis() { redis-cli -s "$REDIS_SOCKET" -a "$password" --no-auth-warning "$@"; }
    start_streamcap DEFAULT_LIMIT=1 "REDIS_PASSWORD=$password"
    acquire u1 r1
    answer 204 held
    eq "$(slots u1)" 1
    printf '%s\n' "$password" >"$DIR/password"
    start_streamcap DEFAULT_LIMIT=1 "REDIS_PASSWORD_FILE=$DIR/password"
    acquire u1 r2
    answer 403 denied stream_limit_reached
    # It beats the URL's, and both stay out of the log.
    start_streamcap DEFAULT_LIMIT=1 "REDIS_URL=redis://:wr0ng@127.0.0.1:1" "REDIS_PASSWORD=$password"
    acquire u1 r1
    eq "$(header X-Stream-Slot)" failopen
    refute grep -rqF -e 'p@ss' -e wr0ng "$DIR" --include='*.err'
    streamcap '' "REDIS_URL=redis://user:$password@127.0.0.1:6379"
    eq "$STATUS" 2
    grep -q STREAMCAP_REDIS_URL "$DIR/command.err"
    grep -q STREAMCAP_REDIS_PASSWORD "$DIR/command.err"
    refute grep -qF -e 'p@ss' -e 'w#rd' "$DIR/command.err"
    streamcap check "REDIS_URL=unix://$REDIS_SOCKET" REDIS_PASSWORD=wr0ng
    eq "$STATUS" 1
    refute grep -qF wr0ng "$DIR/command.err" "$DIR/command.out"
}


@test "C06: the shapes of a Redis URL" {
    local url
    for url in redis.internal:6379 localhost redis:// redis://:6379 'redis://h?timeout=1s' valkey://h http://h:6379 \
        redis://h:0 redis://h:port redis://h/one 'redis://h1:6379,h2:6379' unix://; do
        refused "REDIS_URL=$url"
    done
    # Right, with nobody there: not a matter of the settings.
    for url in 'redis://[::1]:1/0' redis://127.0.0.1:1 redis://user:pass@127.0.0.1:1/2 "unix://$DIR/nobody.sock?db=2" rediss://127.0.0.1:1; do
        streamcap check "REDIS_URL=$url"
        eq "$STATUS" 1 "exit status with $url: $(cat "$DIR/command.err")"
    done
    # The database of a URL is the one that is used.
    start_redis
    start_streamcap "REDIS_URL=unix://$REDIS_SOCKET?db=2"
    acquire u1 r1
    answer 204 held
    eq "$(redis -n 2 ZCARD "$(slots_key u1)") $(redis -n 0 DBSIZE)" '1 0'
}

@test "C07: LIMITS splits at the last colon, and what can't be meant is an error" {
    local value
    start_streamcap LIMITS=team:eu:2,free:1
    acquire u1 r1 -H 'X-Plan: team:eu'
    eq "$(header X-Stream-Limit)" 2
    taken LIMITS=free:0,paid:-1
    for value in free:1,free:2 free:-3 free:99999999999 free :1 free: free:x; do
        refused "LIMITS=$value"
    done
}

@test "C09: all mistakes come in one message, with those that contradict one another" {
    refused SLOT_TTL=120 LIMITS=free ON_STORE_FAILURE=maybe DENY_STATUS=500 REDIS_MODE=cluster
    refused SLOT_TTL=20s HEARTBEAT_INTERVAL=20s
    refused INITIAL_TTL=1s HEARTBEAT_INTERVAL=20s
    streamcap '' DEFAULT_LIMT=3
    eq "$STATUS" 2
    grep -q 'STREAMCAP_DEFAULT_LIMIT' "$DIR/command.err"
    # What container platforms put in is none of ours.
    taken SERVICE_HOST=10.0.0.1 PORT=tcp://10.0.0.1:9180 PORT_9180_TCP=tcp://10.0.0.1:9180
}

@test "H07: a TTL of less than three heartbeats is refused, naming both settings" {
    streamcap '' SLOT_TTL=20s HEARTBEAT_INTERVAL=20s
    eq "$STATUS" 2
    grep -q STREAMCAP_SLOT_TTL "$DIR/command.err"
    grep -q STREAMCAP_HEARTBEAT_INTERVAL "$DIR/command.err"
    taken SLOT_TTL=60s HEARTBEAT_INTERVAL=20s
}
