#!/usr/bin/env bats
# /release: gives back at once, may be repeated, and isn't lost with the caller or a hiccup of Redis.

load lib

@test "R01: a caller that hangs up does not undo its release" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s RELEASE_TIMEOUT=2s
    acquire u1 r1
    release u1 nothing
    kill -STOP "$REDIS_PID"
    release u1 r1 -m 0.05
    eq "$STATUS" 000
    kill -CONT "$REDIS_PID"
    eventually 3 slots_are u1 0
}

@test "R05: a release that Redis did not take is a 202, is kept, and is done once Redis answers" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s RELEASE_TIMEOUT=200ms
    acquire u1 r1
    acquire u2 r2
    release u1 nothing
    kill -STOP "$REDIS_PID"
    fastest release u1 r1
    eq "$STATUS" 202
    eq "$(header X-Stream-Reason)" timeout X-Stream-Reason
    within "$TOOK" 190 300 "ms of a release with a budget of 200"
    batch /release '{"slots":[{"user":"u2","id":"r2"}]}'
    eq "$STATUS" 202
    kill -CONT "$REDIS_PID"
    eventually 3 slots_are u1 0
    eventually 3 slots_are u2 0
}

@test "R04: slots that nobody keeps or releases are free after their TTL, and not before" {
    start_redis
    start_streamcap DEFAULT_LIMIT=3 SLOT_TTL=2s HEARTBEAT_INTERVAL=300ms
    local i began last
    for i in 1 2 3; do
        began=$(now_ms)
        acquire u1 "r$i"
        answer 204 held
        within $(($(expiry u1 "r$i") - 2000)) "$began" "$(now_ms)" "one TTL before the end of r$i"
    done
    last=$(expiry u1 r3)
    dies_at u1 "$(expiry u1 r1)"
    eventually 3 is_past "$last" # a heartbeat that came before would keep the slot
    for i in 1 2 3; do
        heartbeat u1 "r$i"
        eq "$STATUS" 410 "heartbeat of r$i"
    done
    acquire u1 r5
    eq "$(header X-Stream-Used)" 2 X-Stream-Used
    eq "$(redis ZCARD "$(slots_key u1)")" 2 "the members"
}

is_past() { (($(now_ms) > $1)); }

@test "R04: releasing twice, or what was never there, is a 204 that says 0" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    release u1 r1
    eq "$STATUS $(header X-Stream-Released)" '204 1'
    release u1 r1
    eq "$STATUS $(header X-Stream-Released)" '204 0'
    release nobody r1
    eq "$STATUS $(header X-Stream-Released)" '204 0'
    acquire u1 r2
    acquire u2 r2
    batch /release '{"slots":[{"user":"u1","id":"r2"},{"user":"u2","id":"r2"},{"user":"u2","id":"r2"},{"user":"u3","id":"r3"}]}'
    eq "$STATUS $(jq -c . "$BODY")" '200 {"released":2}'
    no_keys
}

@test "R06: nginx's line frees the slot that it names, and nonsense on that port harms nobody" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    acquire u1 r1
    acquire u2 r2
    local line nginx='<190>Nov 30 00:00:00'
    for line in '' 'nonsense' '<190>' "$nginx streamcap: not json" "$nginx streamcap: {\"user\":\"u1\"" \
        "$nginx streamcap: {\"user\":\"\",\"id\":\"r1\",\"status\":\"200\"}" \
        "$nginx streamcap: {\"user\":\"u1\",\"id\":\"\",\"status\":\"200\"}" \
        "$nginx streamcap: {\"user\":\"u1\",\"id\":\"r2\",\"status\":\"200\"}" \
        "$nginx streamcap: {\"user\":[1],\"id\":{},\"status\":\"200\"}" "$(printf 'x%.0s' {1..60000})"; do
        datagram "$line"
    done
    always 300 slots_are u1 1
    datagram "$nginx streamcap: {\"user\":\"u1\",\"id\":\"r1\",\"status\":\"200\"}"
    eventually 3 slots_are u1 0
    # With a host name, as nginx writes without "nohostname".
    datagram "$nginx myhost streamcap: {\"user\":\"u2\",\"id\":\"r2\",\"status\":\"499\"}"
    eventually 3 slots_are u2 0
}

datagram() { printf '%s' "$1" >"/dev/udp/${SC_LOG_ADDRESS%:*}/${SC_LOG_ADDRESS##*:}"; }
