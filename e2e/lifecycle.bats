#!/usr/bin/env bats
# The process: how it starts without Redis, how it stops, and its commands.

load lib

@test "F15: it starts and fails open while Redis is away, and enforces soon after it comes" {
    local port
    port=$(free_port)
    starts_within_a_second unavailable DEFAULT_LIMIT=1 "REDIS_URL=redis://127.0.0.1:$port"
    heartbeat u1 r1
    eq "$STATUS" 202
    request "$SC/healthz"
    eq "$STATUS" 200
    start_redis --port "$port" --bind 127.0.0.1
    eventually 15 acquire_says held u1 r1
    acquire u1 r2
    answer 403 denied stream_limit_reached
}

acquire_says() {
    acquire "$2" "$3"
    [[ $(header X-Stream-Slot) == "$1" ]]
}

@test "F15: a name that can't be resolved is no reason not to start" {
    starts_within_a_second unavailable 'REDIS_URL=redis://no-such-host.invalid:6379' ACQUIRE_TIMEOUT=5s
}

# starts_within_a_second REASON NAME=value...: from the start to a first answer that fails open. The fastest of three: the
# machine may be busy.
starts_within_a_second() {
    local reason=$1 began took fastest=99999
    shift
    for _ in 1 2 3; do
        began=$(now_ms)
        start_streamcap "$@"
        acquire u1 r1
        took=$(($(now_ms) - began))
        answer 204 failopen "$reason"
        ((took >= fastest)) || fastest=$took
        ((fastest >= 1000)) || break
    done
    under "$fastest" 1000 "ms from the start to the first answer"
}

@test "F06: scripts that Redis forgot are sent again: the next acquire is denied, not let through" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    redis SCRIPT FLUSH
    acquire u1 r2
    answer 403 denied stream_limit_reached
    redis SCRIPT FLUSH
    heartbeat u1 r1
    eq "$STATUS" 204
    redis SCRIPT FLUSH
    release u1 r1
    eq "$STATUS $(header X-Stream-Released)" '204 1'
}

@test "G01: SIGTERM and SIGINT end it with 0 at once, and it says so" {
    local signal began
    start_redis
    for signal in TERM INT; do
        start_streamcap
        acquire u1 r1
        began=$(now_ms)
        kill "-$signal" "$STREAMCAP_PID"
        exit_status "$STREAMCAP_PID" 3
        eq "$STATUS" 0 "exit status after SIG$signal"
        under $(($(now_ms) - began)) 3000 "ms to the end"
        log_has stopping
    done
    eq "$(slots u1)" 1
}

@test "G01: what is under way at SIGTERM is answered first" {
    start_redis
    start_streamcap HEARTBEAT_TIMEOUT=3s SLOT_TTL=60s
    acquire u1 r1
    heartbeat u1 r1
    kill -STOP "$REDIS_PID"
    launch under-way curl -s -m 10 -o /dev/null -w '%{http_code}' -X POST -H 'X-User-Id: u1' -H 'X-Request-Id: r1' "$SC/heartbeat"
    local curl=$LAUNCHED
    eventually 3 connected_to "$SC_ADDRESS"
    kill -TERM "$STREAMCAP_PID"
    eventually 2 log_has stopping
    eventually 2 refused "$SC"
    kill -CONT "$REDIS_PID"
    exit_status "$STREAMCAP_PID" 5
    eq "$STATUS" 0 "exit status"
    eventually 3 ended "$curl"
    eq "$(cat "$DIR/under-way.out")" 204 "what the heartbeat was answered"
}

# A request is under way: curl's connection stands, and its bytes have been read.
connected_to() { [[ -n $(ss -Htn state established "dport = :${1##*:}") ]]; }

refused() { [[ $(curl -s -o /dev/null -w '%{http_code}' "$1/healthz") == 000 ]]; }

@test "G01: a second signal ends it at once, with 1" {
    start_redis
    start_streamcap HEARTBEAT_TIMEOUT=10s SLOT_TTL=60s
    acquire u1 r1
    heartbeat u1 r1
    kill -STOP "$REDIS_PID"
    launch under-way curl -s -m 10 -o /dev/null -X POST -H 'X-User-Id: u1' -H 'X-Request-Id: r1' "$SC/heartbeat"
    eventually 3 connected_to "$SC_ADDRESS"
    kill -TERM "$STREAMCAP_PID"
    eventually 2 log_has stopping
    always 300 kill -0 "$STREAMCAP_PID"
    local began
    began=$(now_ms)
    kill -TERM "$STREAMCAP_PID"
    exit_status "$STREAMCAP_PID" 2
    eq "$STATUS" 1 "exit status"
    under $(($(now_ms) - began)) 1500 "ms to the end"
}

@test "G01: a release that Redis hasn't taken is sent once more as it stops" {
    start_redis
    start_streamcap SLOT_TTL=60s RELEASE_TIMEOUT=200ms
    acquire u1 r1
    release u1 nothing
    kill -STOP "$REDIS_PID"
    release u1 r1
    eq "$STATUS" 202
    kill -TERM "$STREAMCAP_PID"
    kill -CONT "$REDIS_PID"
    exit_status "$STREAMCAP_PID" 6
    eq "$STATUS" 0 "exit status"
    eq "$(slots u1)" 0
}

@test "F14: healthz and healthcheck are fine with Redis up or down, and say which" {
    start_redis
    start_streamcap
    request "$SC/healthz"
    eq "$STATUS" 200
    eq "$(jq -c '[.status, .store, (.roles | keys | sort | join(" "))]' "$BODY")" '["ok","redis","acquire admin heartbeat release"]'
    eq "$(jq -r .roles.acquire.breaker "$BODY")" closed
    streamcap healthcheck "LISTEN=$SC_ADDRESS"
    eq "$STATUS" 0 "exit status of healthcheck"
    kill -STOP "$REDIS_PID"
    acquire u1 r1
    answer 204 failopen timeout
    fastest request "$SC/healthz"
    eq "$STATUS" 200
    eq "$(jq -r .status "$BODY")" degraded
    under "$TOOK" 100 "ms of healthz with Redis hanging"
    streamcap healthcheck "LISTEN=$SC_ADDRESS"
    eq "$STATUS" 0 "exit status of healthcheck"
    end KILL "$STREAMCAP_PID"
    streamcap healthcheck "LISTEN=$SC_ADDRESS"
    eq "$STATUS" 1 "exit status of healthcheck with nobody there"
    [[ -s $DIR/command.err ]]
}

@test "F14: healthcheck asks a unix socket, and loopback where the process listens everywhere" {
    start_streamcap "LISTEN=unix:$DIR/streamcap.sock"
    streamcap healthcheck "LISTEN=unix:$DIR/streamcap.sock"
    eq "$STATUS" 0
    start_streamcap LISTEN=0.0.0.0:0
    streamcap healthcheck "LISTEN=0.0.0.0:${SC_ADDRESS##*:}" SLOT_TTL=nonsense
    eq "$STATUS" 0
}

@test "N15: a unix socket: mode 0666, a stale file is replaced, one in use is an error" {
    start_streamcap "LISTEN=unix:$DIR/streamcap.sock"
    eq "$(stat -c %a "$DIR/streamcap.sock")" 666 "mode of the socket"
    streamcap '' "LISTEN=unix:$DIR/streamcap.sock" ADMIN_LISTEN=127.0.0.1:0
    eq "$STATUS" 1 "exit status with the socket in use"
    request --unix-socket "$DIR/streamcap.sock" -H 'X-User-Id: u1' -H 'X-Request-Id: r1' http://streamcap/acquire
    answer 204 held
    end KILL "$STREAMCAP_PID"
    [[ -S $DIR/streamcap.sock ]]
    start_streamcap "LISTEN=unix:$DIR/streamcap.sock" SOCKET_MODE=0600
    eq "$(stat -c %a "$DIR/streamcap.sock")" 600 "mode of the socket"
    request --unix-socket "$DIR/streamcap.sock" -H 'X-User-Id: u1' -H 'X-Request-Id: r1' http://streamcap/acquire
    answer 204 held
}

@test "G01: an address in use is an error that names it, exit 1" {
    start_streamcap
    streamcap '' "LISTEN=$SC_ADDRESS" ADMIN_LISTEN=127.0.0.1:0
    eq "$STATUS" 1
    grep -q "$SC_ADDRESS" "$DIR/command.err"
}

@test "C09: check tries each role and leaves nothing behind: 0 is well, 1 the store, 2 the settings" {
    start_redis
    redis CONFIG SET hz 1 # a key that has expired is counted until Redis looks
    streamcap check "REDIS_URL=unix://$REDIS_SOCKET"
    eq "$STATUS" 0
    local role
    for role in acquire heartbeat release admin; do
        eq "$(grep -c "^$role " "$DIR/command.out")" 1 "lines for $role"
    done
    eq "$(redis DBSIZE)" 0 "keys that check left"
    streamcap check
    eq "$STATUS" 0 "exit status on the embedded store"
    streamcap check "REDIS_URL=unix://$DIR/nobody.sock"
    eq "$STATUS" 1 "exit status with nobody there"
    grep -q '^acquire .*unavailable' "$DIR/command.out"
    streamcap check SLOT_TTL=120
    eq "$STATUS" 2 "exit status with a bad setting"
    grep -q 'STREAMCAP_SLOT_TTL="120"' "$DIR/command.err"

    redis CONFIG SET requirepass secret
    streamcap check "REDIS_URL=unix://$REDIS_SOCKET"
    eq "$STATUS" 1 "exit status without the password"
    eq "$(grep -c noperm "$DIR/command.out")" 4 "roles that name the reason"
    streamcap check "REDIS_URL=unix://$REDIS_SOCKET" REDIS_PASSWORD=secret
    eq "$STATUS" 0 "exit status with the password"
}

@test "C09: version prints one line, and an unknown command is a mistake" {
    streamcap version
    eq "$STATUS" 0
    eq "$(wc -l <"$DIR/command.out")" 1 lines
    streamcap serv
    eq "$STATUS" 2
    grep -q serv "$DIR/command.err"
}
