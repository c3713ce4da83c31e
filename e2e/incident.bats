#!/usr/bin/env bats
# The incident that streamcap was built for, replayed: a deploy sends SIGKILL to three containers with
# nineteen streams in flight each.

load lib

# three_backends_of_nineteen: users u1 to u57, one stream each, all running.
three_backends_of_nineteen() {
    local i
    BACKEND_PIDS=()
    for i in 1 2 3; do
        start_backend HEARTBEAT=500ms
        BACKEND_PIDS+=("$BACKEND_PID")
    done
    # All at once on a small machine: none must fail open for that.
    NGINX_SED=('s#proxy_read_timeout    300ms;#proxy_read_timeout 6s;#')
    start_nginx
    for ((i = 1; i <= 57; i++)); do
        begin_stream "s$i" "u$i"
    done
    for ((i = 1; i <= 57; i++)); do
        eventually 10 began "s$i"
        eq "$(first_event "s$i" slot)" held
    done
}

# expiries: the one slot of each of the 57 users, lines "USER MS"; nothing for a user without one.
expiries() {
    local i
    for ((i = 1; i <= 57; i++)); do
        echo "EVAL \"local m = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'); return KEYS[2] .. ' ' .. (m[2] or '')\" 2 $(slots_key "u$i") u$i"
    done | redis | sed 's/\.[0-9]*$//'
}

# all_alive: 57 slots, none of them dead already.
all_alive() { eq "$(expiries | awk -v now="$(now_ms)" '$2 > now' | wc -l)" 57 "live slots"; }

@test "E07: three backends of 19 streams and nginx's workers are killed: each slot is gone one TTL after its last heartbeat, and not before" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=3s HEARTBEAT_INTERVAL=500ms ACQUIRE_TIMEOUT=2s
    three_backends_of_nineteen

    # The old design does the same: 3 processes that count 19 streams each.
    local i old_pids=() killed
    for i in 0 1 2; do
        launch "old$i" "$BATS_TEST_DIRNAME/old_counter" "$REDIS_SOCKET" $(seq -f 'u%.0f' $((i * 19 + 1)) $((i * 19 + 19)))
        old_pids+=("$LAUNCHED")
    done
    launch old-graceful "$BATS_TEST_DIRNAME/old_counter" "$REDIS_SOCKET" graceful
    for i in old0 old1 old2 old-graceful; do eventually 10 grep -q streaming "$DIR/$i.out"; done
    end TERM "$LAUNCHED"
    eq "$(redis GET old:graceful)" 0 "the old counter after a stop that lets it finish"

    # Alive for longer than a TTL: heartbeats do it.
    always 3200 all_alive
    # Stopped first, so that none of them lives to see another one's end and to report it.
    mapfile -t workers < <(nginx_workers)
    kill -STOP "${BACKEND_PIDS[@]}" "${workers[@]}"
    kill -KILL "${BACKEND_PIDS[@]}" "${old_pids[@]}" "${workers[@]}"
    killed=$(now_ms)
    for i in "${BACKEND_PIDS[@]}" "${old_pids[@]}"; do eventually 5 ended "$i"; done

    # What each slot's last heartbeat left it: at most one TTL from now, and no less than what a
    # heartbeat that was due at the kill would have found.
    eventually 2 eval '(($(now_ms) > killed + 200))' # a heartbeat that was under way has been taken
    expiries >"$DIR/expiries"
    local user expires
    declare -A dies
    while read -r user expires; do
        within "$((expires - killed))" 1500 3100 "ms that the slot of $user outlives the kill"
        dies[$user]=$expires
    done <"$DIR/expiries"
    eq "${#dies[@]}" 57 "slots that nobody said goodbye for"

    # Every user tries again and again: denied while the slot lives, let in once it is dead.
    local began finished status denied=57
    for ((i = 1; i <= 57; i++)); do
        ((i == 1)) || echo next
        printf 'url = "%s/acquire"\nheader = "X-User-Id: u%s"\nheader = "X-Request-Id: again"\noutput = /dev/null\nwrite-out = "%%{http_code} u%s\\n"\n' "$SC" "$i" "$i"
    done >"$DIR/again"
    while ((denied > 0)); do
        began=$(now_ms)
        curl -sS -m 10 -K "$DIR/again" >"$DIR/answers"
        finished=$(now_ms)
        denied=0
        while read -r status user; do
            if [[ $status == 204 ]]; then
                under "${dies[$user]}" "$((finished + 1))" "the end of the slot of $user, who was let in before"
            else
                eq "$status" 403
                under "$began" "${dies[$user]}" "the time, with $user still denied"
                denied=$((denied + 1))
            fi
        done <"$DIR/answers"
        eq "$(wc -l <"$DIR/answers")" 57 answers
    done

    # The counters are where they were, for ever.
    for ((i = 1; i <= 57; i++)); do
        eq "$(redis GET "old:u$i") $(redis TTL "old:u$i")" '1 -1' "count and TTL of the old counter of u$i"
    done
}

@test "E07: three backends of 19 streams are killed with nginx alive: every slot is gone within a second" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s ACQUIRE_TIMEOUT=2s
    three_backends_of_nineteen
    eq "$(keys | grep -c ':slots$')" 57 "users with a slot"
    kill -KILL "${BACKEND_PIDS[@]}"
    eventually 1 no_keys
    # 502 until a backend is back, and then at once.
    stream u1
    eq "$STATUS" 502
    start_backend LISTEN="${BACKENDS[0]}"
    eventually 2 streams_again u1
}

streams_again() {
    stream "$1"
    [[ $STATUS == 200 ]]
}
