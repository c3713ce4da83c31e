#!/usr/bin/env bats
# /heartbeat: keeps what is held, and never brings back or takes anything.

load lib

@test "H01: a heartbeat after the release is a 410 and brings nothing back" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    release u1 r1
    eq "$STATUS" 204
    eq "$(header X-Stream-Released)" 1 X-Stream-Released
    heartbeat u1 r1
    eq "$STATUS" 410
    eq "$(header X-Stream-Reason)" not_held X-Stream-Reason
    eq "$(slots u1)" 0
    heartbeat u1 never-there
    eq "$STATUS" 410
    no_keys
}

@test "H01: 250 releases race 250 heartbeats: nothing comes back" {
    start_redis
    start_streamcap DEFAULT_LIMIT=-1 ACQUIRE_TIMEOUT=3s HEARTBEAT_TIMEOUT=3s RELEASE_TIMEOUT=3s
    local i
    for ((i = 1; i <= 250; i++)); do echo "POST $SC/acquire u1 r$i"; done | burst >"$DIR/acquired"
    eq "$(slots u1)" 250
    for ((i = 1; i <= 250; i++)); do
        echo "POST $SC/release u1 r$i"
        echo "POST $SC/heartbeat u1 r$i"
    done | burst >"$DIR/raced"
    # A release is always a 204; a heartbeat is one, or a 410 where it came second.
    within "$(count 204 "$DIR/raced")" 250 500 "204s"
    eq "$(($(count 204 "$DIR/raced") + $(count 410 "$DIR/raced")))" 500 "204s and 410s"
    eq "$(slots u1)" 0
    no_keys
}

@test "H01: a heartbeat extends to now + SLOT_TTL, also one that is late, and never shortens" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=20s HEARTBEAT_INTERVAL=1s INITIAL_TTL=5s
    acquire u1 r1
    answer 204 held
    within $(($(expiry u1 r1) - $(now_ms))) 4000 5000 "ms that a fresh slot lives"
    heartbeat u1 r1
    eq "$STATUS" 204
    local extended
    extended=$(expiry u1 r1)
    within $((extended - $(now_ms))) 19000 20000 "ms that an extended slot lives"
    # A renewing acquire leases for INITIAL_TTL, and shortens nothing.
    acquire u1 r1
    answer 204 held
    eq "$(expiry u1 r1)" "$extended" "the expiry after a renewal"
    # A sidecar with shorter settings, on the same Redis.
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    heartbeat u1 r1
    eq "$STATUS" 204
    eq "$(expiry u1 r1)" "$extended" "the expiry after a heartbeat with a shorter TTL"
}

@test "H05: the first heartbeat past MAX_STREAM_AGE says max_age and frees the slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 MAX_STREAM_AGE=900ms SLOT_TTL=3s HEARTBEAT_INTERVAL=100ms
    local asked acquired began
    asked=$(now_ms)
    acquire u1 r1
    acquired=$(now_ms)
    while
        began=$(now_ms)
        heartbeat u1 r1
        [[ $STATUS == 204 ]]
    do
        under $((began - acquired)) 901 "ms after which a heartbeat was still taken"
    done
    eq "$STATUS" 410
    eq "$(header X-Stream-Reason)" max_age X-Stream-Reason
    under 899 $(($(now_ms) - asked)) "900 less 1, against the ms after which the stream was too old"
    eq "$(slots u1)" 0
    heartbeat u1 r1
    eq "$STATUS" 410
    eq "$(header X-Stream-Reason)" not_held X-Stream-Reason
    acquire u1 r2
    answer 204 held
}

@test "H02: after a flush heartbeats say 410, one or many, and add nothing" {
    start_redis
    start_streamcap DEFAULT_LIMIT=3
    local i
    for i in 1 2 3; do acquire u1 "r$i"; done
    redis FLUSHALL
    heartbeat u1 r1
    eq "$STATUS" 410
    batch /heartbeat '{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"r2"},{"user":"u1","id":"r3"}]}'
    eq "$STATUS" 200
    eq "$(jq -c .extended "$BODY")" 0 extended
    eq "$(jq -c '.gone | sort_by(.id)' "$BODY")" '[{"user":"u1","id":"r1"},{"user":"u1","id":"r2"},{"user":"u1","id":"r3"}]' gone
    no_keys
    for i in 4 5 6; do
        acquire u1 "r$i"
        answer 204 held
    done
}

@test "H01: many at once: those that are held are extended, the others are named" {
    start_redis
    start_streamcap DEFAULT_LIMIT=3
    acquire u1 r1
    acquire u2 r2
    batch /heartbeat '{"slots":[{"user":"u1","id":"r1"},{"user":"u2","id":"r2"},{"user":"u2","id":"r2"},{"user":"u3","id":"r3"}]}'
    eq "$STATUS" 200
    eq "$(header Content-Type)" application/json Content-Type
    eq "$(jq -c . "$BODY")" '{"extended":2,"gone":[{"user":"u3","id":"r3"}]}' body
    batch /heartbeat '{"slots":[]}'
    eq "$STATUS" 200
    eq "$(jq -c . "$BODY")" '{"extended":0,"gone":[]}' body
    eq "$(slots u3)" 0
}

@test "H01: a batch of 10,000 is answered; one more, or a bad one, changes nothing" {
    start_redis
    start_streamcap DEFAULT_LIMIT=-1 HEARTBEAT_TIMEOUT=3s RELEASE_TIMEOUT=3s
    acquire u1 r1
    jq -nc '{slots: [range(10000) | {user: "u1", id: "r\(.)"}]}' >"$DIR/many"
    batch /heartbeat "@$DIR/many"
    eq "$STATUS" 200
    eq "$(jq -c '[.extended, (.gone | length)]' "$BODY")" '[1,9999]'
    jq -nc '{slots: [range(10001) | {user: "u1", id: "r\(.)"}]}' >"$DIR/too-many"
    batch /release "@$DIR/too-many"
    eq "$STATUS" 413
    eq "$(header Content-Type)" application/problem+json Content-Type
    local bad
    for bad in '' 'nonsense' '{}' '{"slots":null}' '{"slots":{}}' '{"slots":[{"user":"u1","id":"r1"}]} x' \
        '{"slots":[{"user":"u1","id":"r1"},{"user":"u1"}]}' '{"slots":[{"user":"u1","id":"r1"},{"user":"u1","id":"a b"}]}' \
        '{"slots":[{"user":"u1","id":"r1"},{"user":"-","id":"r1"}]}' '[{"user":"u1","id":"r1"}]'; do
        batch /release "$bad"
        eq "$STATUS" 400 "status of $bad"
        eq "$(header Content-Type)" application/problem+json "Content-Type for $bad"
    done
    eq "$(slots u1)" 1
}

@test "H01: GET is a 405 with Allow, for heartbeats and releases" {
    start_streamcap
    acquire u1 r1
    heartbeat u1 r1 -X GET
    eq "$STATUS" 405
    eq "$(header Allow)" 'POST, PUT' Allow
    heartbeat u1 r1 -X PUT
    eq "$STATUS" 204
    release u1 r1 -X GET
    eq "$STATUS" 405
    eq "$(header Allow)" 'POST, PUT, DELETE' Allow
    release u1 r1 -X DELETE
    eq "$STATUS" 204
    eq "$(header X-Stream-Released)" 1 X-Stream-Released
}

@test "H09: heartbeats under another id than the acquire's say 410, and one line a minute names them" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 nginx-id
    local i
    for i in 1 2 3; do
        heartbeat u1 my-own-id
        eq "$STATUS" 410
    done
    eq "$(grep -c my-own-id "$STREAMCAP_LOG")" 1 "lines that name it"
    eq "$(redis ZRANGE "$(slots_key u1)" 0 -1)" nginx-id
}

@test "H08: Redis hangs: a heartbeat or release is a 202 within its budget, never a 5xx" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s HEARTBEAT_TIMEOUT=200ms
    acquire u1 r1
    heartbeat u1 r1
    kill -STOP "$REDIS_PID"
    fastest heartbeat u1 r1
    eq "$STATUS" 202
    eq "$(header X-Stream-Reason)" timeout X-Stream-Reason
    eq "$(wc -c <"$BODY")" 0 "bytes of body"
    within "$TOOK" 190 300 "ms of a heartbeat with a budget of 200"
    batch /heartbeat '{"slots":[{"user":"u1","id":"r1"}]}'
    eq "$STATUS" 202
    kill -CONT "$REDIS_PID"
    eventually 3 heartbeat_is 204 u1 r1
    eq "$(slots u1)" 1
}

heartbeat_is() {
    heartbeat "$2" "$3"
    [[ $STATUS == "$1" ]]
}
