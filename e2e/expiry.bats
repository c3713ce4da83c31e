#!/usr/bin/env bats
# Slots end by themselves, on Redis's clock, with no process that would have to clean up.

load lib

setup_file() {
    cc -O2 -shared -fPIC -o "$BATS_FILE_TMPDIR/clock_shim.so" "$REPO/slotstore/redistest/shim/clock.c"
}

# redis_clock_off_by SECONDS: Redis with a clock that much ahead of everybody else's.
redis_clock_off_by() {
    REDIS_PRELOAD=$BATS_FILE_TMPDIR/clock_shim.so
    export CLOCK_FILE=$DIR/clock
    python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("=qq", 0, int(sys.argv[1]) * 1000))' "$1" >"$CLOCK_FILE"
    start_redis
    within $(($(redis TIME | head -n 1) - $(now_ms) / 1000 - $1)) -1 1 "seconds that Redis's clock is off from where it should be"
}

clock_off_by() {
    redis_clock_off_by "$1"
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    acquire u1 r2
    answer 403 denied stream_limit_reached
    within "$(header Retry-After)" 119 120 Retry-After
    heartbeat u1 r1
    eq "$STATUS" 204
    within "$(redis PTTL "$(slots_key u1)")" 230000 240000 "ms that the key lives: one TTL more than its last slot"

    # A short TTL on the same Redis: the slot lives it out, and no longer.
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=1s HEARTBEAT_INTERVAL=300ms
    local began
    acquire u2 r1
    answer 204 held
    began=$(now_ms)
    heartbeat u2 r1
    eq "$STATUS" 204
    within $(($(expiry u2 r1) - $1 * 1000 - 1000)) "$began" "$(now_ms)" "one TTL before the slot's end, by our clock"
    dies_at u2 "$(expiry u2 r1)" "$1"
    heartbeat u2 r1
    eq "$STATUS" 410
    eq "$(slots u1)" 1 "slots of the user with the long TTL"
}

@test "E01: Redis's clock is 150 s ahead: no live slot is pruned, TTL, Retry-After and 410 stay right" {
    clock_off_by 150
}

@test "E01: Redis's clock is 150 s behind: no slot outlives its TTL, Retry-After and 410 stay right" {
    clock_off_by -150
}

@test "E02: after their time the keys of 200 users are gone with no further traffic" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=600ms HEARTBEAT_INTERVAL=200ms ACQUIRE_TIMEOUT=3s
    local i
    for ((i = 1; i <= 200; i++)); do echo "GET $SC/acquire u$i r"; done | burst >"$DIR/burst"
    eq "$(count 204 "$DIR/burst")" 200 held
    within "$(keys | wc -l)" 1 400 keys
    # The slot's TTL and one more.
    eventually 3 no_keys
}

@test "E04: a dead slot doesn't count, while a longer one keeps the key alive" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=60s HEARTBEAT_INTERVAL=300ms INITIAL_TTL=1500ms
    acquire u1 long
    heartbeat u1 long
    eq "$STATUS" 204
    acquire u1 short
    answer 204 held
    acquire u1 third
    answer 403 denied stream_limit_reached
    within "$(header Retry-After)" 1 2 Retry-After
    eventually 5 acquire_is 204 u1 third
    eq "$(header X-Stream-Used)" 2 X-Stream-Used
    eq "$(redis ZRANGE "$(slots_key u1)" 0 -1 | sort | xargs)" 'long third' "the members"
    eq "$(redis HKEYS 'streamcap:{u1}:details' | sort | xargs)" 'long third' "the details"
    heartbeat u1 short
    eq "$STATUS" 410
}

acquire_is() {
    acquire "$2" "$3"
    [[ $STATUS == "$1" ]]
}

@test "E06: a deleted key under five live streams: 410s, no 5xx, and the next acquire starts from 0" {
    start_redis
    start_streamcap DEFAULT_LIMIT=5
    local i
    for i in {1..5}; do acquire u1 "r$i"; done
    redis DEL "$(slots_key u1)"
    for i in {1..5}; do
        heartbeat u1 "r$i"
        eq "$STATUS" 410
        release u1 "r$i"
        eq "$STATUS $(header X-Stream-Released)" '204 0'
    done
    acquire u1 r6
    answer 204 held
    eq "$(header X-Stream-Used)" 1 X-Stream-Used
}

@test "E06: keys that hold something else fail open, and other users stay capped" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    redis SET "$(slots_key u1)" surprise
    acquire u1 r1
    answer 204 failopen wrongtype
    heartbeat u1 r1
    eq "$STATUS" 202
    eq "$(header X-Stream-Reason)" wrongtype X-Stream-Reason
    acquire u2 r1
    answer 204 held
    acquire u2 r2
    answer 403 denied stream_limit_reached
}

@test "G04: all sidecars are killed at the cap: one TTL later a new one grants at once" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    local first=$STREAMCAP_PID expires
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    acquire u1 r1
    answer 204 held
    expires=$(expiry u1 r1)
    end KILL "$first" "$STREAMCAP_PID"
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    acquire u1 r2
    answer 403 denied stream_limit_reached
    end KILL "$STREAMCAP_PID"
    eventually 5 eval '(($(now_ms) > expires))'
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    acquire u1 r2
    answer 204 held
}
