#!/usr/bin/env bats
# /acquire itself, without nginx: who gets a slot, who is denied, and what a decision leaves behind.

load lib

# acquire_all URL USER FIRST LAST: ids rFIRST to rLAST, all at once; lines "STATUS USER ID" in $DIR/burst.
acquire_all() {
    local i
    for ((i = $3; i <= $4; i++)); do
        echo "GET $1/acquire $2 r$i"
    done | burst >"$DIR/burst"
}

@test "A01: a denied acquire leaves nothing behind" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    local expires ttl
    expires=$(expiry u1 r1)
    ttl=$(redis PEXPIRETIME "$(slots_key u1)")
    acquire_all "$SC" u1 2 51
    eq "$(count 403 "$DIR/burst")" 50 "denials"
    eq "$(slots u1)" 1 "slots after the denials"
    eq "$(redis HLEN 'streamcap:{u1}:details')" 1 "details after the denials"
    eq "$(expiry u1 r1)" "$expires" "the slot's expiry"
    eq "$(redis PEXPIRETIME "$(slots_key u1)")" "$ttl" "the key's expiry"
    release u1 r1
    eq "$STATUS" 204
    acquire u1 r52
    answer 204 held
    eq "$(slots u1)" 1
}

@test "A02: exactly as many slots as the limit says, for 1, 2 and 5" {
    start_redis
    start_streamcap LIMITS=one:1,two:2,five:5
    local plan n i
    for plan in one:1 two:2 five:5; do
        n=${plan#*:} plan=${plan%:*}
        for ((i = 1; i <= n; i++)); do
            acquire "u-$plan" "r$i" -H "X-Plan: $plan"
            answer 204 held
            eq "$(header X-Stream-Limit)" "$n" X-Stream-Limit
            eq "$(header X-Stream-Used)" "$i" X-Stream-Used
        done
        acquire "u-$plan" one-more -H "X-Plan: $plan"
        answer 403 denied stream_limit_reached
        eq "$(header X-Stream-Limit)" "$n" X-Stream-Limit
        eq "$(header X-Stream-Used)" "$n" X-Stream-Used
        eq "$(slots "u-$plan")" "$n"
    done
}

@test "A03: 100 acquires at once on two sidecars over one Redis: exactly 3 are held" {
    start_redis
    start_streamcap DEFAULT_LIMIT=3 ACQUIRE_TIMEOUT=3s
    local first=$SC i
    start_streamcap DEFAULT_LIMIT=3 ACQUIRE_TIMEOUT=3s
    for ((i = 1; i <= 50; i++)); do
        echo "GET $first/acquire u1 a$i"
        echo "GET $SC/acquire u1 b$i"
    done | burst >"$DIR/burst"
    eq "$(count 204 "$DIR/burst")" 3 held
    eq "$(count 403 "$DIR/burst")" 97 denied
    eq "$(slots u1)" 3
}

@test "A03: 100 acquires at once on the embedded store: exactly 3 are held" {
    start_streamcap DEFAULT_LIMIT=3
    acquire_all "$SC" u1 1 100
    eq "$(count 204 "$DIR/burst")" 3 held
    eq "$(count 403 "$DIR/burst")" 97 denied
}

@test "A04: the same id again at the limit is held and counted once" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=20s HEARTBEAT_INTERVAL=2s
    acquire u1 r1
    answer 204 held
    local before
    before=$(expiry u1 r1)
    acquire u1 r2
    answer 403 denied stream_limit_reached
    acquire u1 r1
    answer 204 held
    eq "$(header X-Stream-Used)" 1 X-Stream-Used
    eq "$(header X-Stream-Heartbeat-Interval)" 2 X-Stream-Heartbeat-Interval
    eq "$(slots u1)" 1
    under "$before" "$(expiry u1 r1)" "the expiry before, against the renewed one"
}

@test "A07: 50 ids in one burst are 50 slots, and the 51st is denied" {
    start_redis
    start_streamcap DEFAULT_LIMIT=50 ACQUIRE_TIMEOUT=3s
    acquire_all "$SC" u1 1 50
    eq "$(count 204 "$DIR/burst")" 50 held
    eq "$(slots u1)" 50
    acquire u1 r51
    answer 403 denied stream_limit_reached
}

@test "A08: limit 0 denies with no time to wait for, limit -1 counts and never denies" {
    start_redis
    start_streamcap DEFAULT_LIMIT=0
    acquire u1 r1
    answer 403 denied stream_limit_reached
    eq "$(header Retry-After)" ''
    eq "$(header X-Stream-Limit)" 0
    no_keys
    local i
    for i in 1 2 3; do
        acquire u1 "r$i" -H 'X-Stream-Limit: -1'
        answer 204 held
        eq "$(header X-Stream-Used)" "$i" X-Stream-Used
        eq "$(header X-Stream-Limit)" -1
    done
    eq "$(slots u1)" 3
    # A trusted limit that can't be read is no limit at all, and the default stands.
    acquire u1 r4 -H 'X-Stream-Limit: -2'
    answer 403 denied stream_limit_reached
    eq "$(header X-Stream-Limit)" 0
}

@test "A08: lowering the limit kills no stream and blocks new ones until there is room" {
    start_redis
    start_streamcap DEFAULT_LIMIT=5
    local i
    for i in 1 2 3 4; do
        acquire u1 "r$i"
        answer 204 held
    done
    end TERM "$STREAMCAP_PID"
    start_streamcap DEFAULT_LIMIT=2
    for i in 1 2 3 4; do
        heartbeat u1 "r$i"
        eq "$STATUS" 204 "heartbeat of r$i"
    done
    for i in 1 2 3; do
        acquire u1 new
        answer 403 denied stream_limit_reached
        eq "$(header X-Stream-Used)" $((5 - i)) X-Stream-Used
        release u1 "r$i"
    done
    acquire u1 new
    answer 204 held
    eq "$(slots u1)" 2
}

@test "A11: without a user nobody shares a slot and nobody is denied" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    local i value
    for i in 1 2; do
        request -H "X-Request-Id: none$i" "$SC/acquire"
        answer 204 uncounted no_user
        for value in ';' ':    ' ': -' $': \t'; do
            request -H "X-User-Id$value" -H "X-Request-Id: r$i" "$SC/acquire"
            answer 204 uncounted no_user
        done
        acquire "$(printf 'u%.0s' {1..257})" "long$i"
        answer 204 uncounted no_user
    done
    no_keys
}

@test "A11: ON_MISSING_ID=deny refuses with 401, and says which one is missing" {
    start_redis
    start_streamcap ON_MISSING_ID=deny
    request -H 'X-Request-Id: r1' "$SC/acquire"
    answer 401 denied no_user
    request -H 'X-User-Id: u1' "$SC/acquire"
    answer 401 denied no_request_id
    request -X GET -H 'X-Original-Method: OPTIONS' "$SC/acquire"
    answer 204 uncounted preflight
    no_keys
}

@test "A12: without a request id nothing is taken, and nobody loses a slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    local i value
    for i in {1..10}; do
        request -H 'X-User-Id: u1' "$SC/acquire"
        answer 204 uncounted no_request_id
    done
    for value in 'a b' 'a/b' 'a{b' "$(printf 'r%.0s' {1..129})"; do
        acquire u1 "$value"
        answer 204 uncounted no_request_id
    done
    request -X POST -H 'X-User-Id: u1' -H 'X-Request-Id;' "$SC/release"
    eq "$STATUS" 400
    request -X POST -H 'X-User-Id: u1' "$SC/heartbeat"
    eq "$STATUS" 400
    eq "$(slots u1)" 1
}

@test "A13: two sidecars enforce one cap, before and after one restarts" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2
    local a=$SC a_pid=$STREAMCAP_PID b
    start_streamcap DEFAULT_LIMIT=2
    b=$SC
    SC=$a acquire u1 r1
    answer 204 held
    SC=$b acquire u1 r2
    answer 204 held
    SC=$a acquire u1 r3
    answer 403 denied stream_limit_reached
    end TERM "$a_pid"
    start_streamcap DEFAULT_LIMIT=2 LOG_LEVEL=debug
    acquire u1 r4
    answer 403 denied stream_limit_reached
    SC=$b acquire u1 r4
    answer 403 denied stream_limit_reached
    eq "$(slots u1)" 2
}

@test "A14: a preflight or a HEAD takes no slot, also at the limit" {
    start_redis
    start_streamcap DEFAULT_LIMIT=0
    local method
    for method in OPTIONS HEAD; do
        acquire u1 r1 -H "X-Original-Method: $method"
        answer 204 uncounted preflight
    done
    acquire u1 r1 -H 'X-Original-Method: POST'
    answer 403 denied stream_limit_reached
    no_keys
}

@test "N05: every method gets the same answer" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    local method
    for method in GET POST PUT PATCH DELETE OPTIONS TRACE PROPFIND; do
        acquire u1 r1 -X "$method"
        answer 204 held
        acquire u1 r2 -X "$method"
        answer 403 denied stream_limit_reached
    done
    acquire u1 r1 --head
    answer 204 held
    acquire u1 r2 --head
    answer 403 denied stream_limit_reached
    eq "$(slots u1)" 1
}

@test "N01: slashes and queries change nothing, other paths are 404, no answer has a body" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    local path
    for path in /acquire /acquire/ /acquire/// '/acquire?x=1' '/acquire/?/../'; do
        request -H 'X-User-Id: u1' -H 'X-Request-Id: r1' -H 'Host: anything' --path-as-is "$SC$path"
        answer 204 held
        eq "$(header Cache-Control)" no-store Cache-Control
    done
    acquire u1 r2
    answer 403 denied stream_limit_reached
    eq "$(header Cache-Control)" no-store Cache-Control
    eq "$(wc -c <"$BODY")" 0 "bytes of body"
    for path in / /acquired /acquire/x /metrics /admin/ /debug/pprof/; do
        request -H 'X-User-Id: u1' -H 'X-Request-Id: r1' "$SC$path"
        eq "$STATUS" 404 "status of $path"
    done
}

@test "N06: a Content-Length or chunked body that never comes is not waited for" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    local head='\r\nHost: x\r\nX-User-Id: u1\r\nX-Request-Id: r1\r\n'
    # The first request of a process is allowed to be slower.
    acquire u1 r1
    fastest raw "$SC_ADDRESS" "GET /acquire HTTP/1.1${head}Content-Length: 77\r\n\r\n"
    eq "$STATUS" 204
    under "$TOOK" 100 "ms with a Content-Length"
    fastest raw "$SC_ADDRESS" "POST /acquire HTTP/1.1${head}Transfer-Encoding: chunked\r\n\r\n"
    eq "$STATUS" 204
    under "$TOOK" 100 "ms with a chunked body"
    fastest raw "$SC_ADDRESS" "POST /acquire HTTP/1.0${head}Content-Length: 10485760\r\n\r\nstart"
    eq "$STATUS" 204
    under "$TOOK" 100 "ms with the start of a body"
    eq "$(slots u1)" 1
}

@test "N06: a body of 10 MB is neither read nor waited for" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    head -c 10485760 /dev/zero >"$DIR/body"
    acquire u1 r1
    # curl's own time to the first byte of the answer, which may come before the body is out.
    fastest post_the_body
    eq "$STATUS" 204
    under "$TOOK" 100 "ms to the answer"
}

post_the_body() {
    local seconds
    read -r STATUS seconds < <(curl -s -m 5 -o /dev/null -w '%{http_code} %{time_starttransfer}\n' \
        -H 'X-User-Id: u1' -H 'X-Request-Id: r1' -H 'Expect:' --data-binary "@$DIR/body" "$SC/acquire" || true)
    TOOK=$((10#${seconds/./} / 1000))
}

@test "N01: 60 KB of headers are answered" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    local cookie
    cookie=$(printf 'c%.0s' {1..60000})
    acquire u1 r1 -H "Cookie: $cookie"
    answer 204 held
    acquire u1 r2 -H "Cookie: $cookie"
    answer 403 denied stream_limit_reached
}

@test "A10: Retry-After is the honest time to the user's earliest expiry, rounded up" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=3s HEARTBEAT_INTERVAL=1s
    acquire u1 r1
    acquire u1 r2
    answer 204 held
    local began expires
    expires=$(expiry u1 r1)
    while
        began=$(now_ms)
        acquire u1 r3
        [[ $STATUS == 403 ]]
    do
        # Rounded up, and 1 to the last moment: the answer was given somewhere between the two.
        within "$(header Retry-After)" "$(whole_seconds $((expires - $(now_ms))))" "$(whole_seconds $((expires - began)))" Retry-After
    done
    answer 204 held
    under "$expires" "$(($(now_ms) + 1))" "the earliest expiry, with another one granted"
}

@test "A10: the first acquire of an id that its client gives up leaves no slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 warm-up
    release u1 warm-up
    kill -STOP "$REDIS_PID"
    acquire u1 r1 -m 0.03
    eq "$STATUS" 000
    kill -CONT "$REDIS_PID"
    eventually 3 slots_are u1 0
    always 300 slots_are u1 0
    acquire u1 r2
    answer 204 held
}

@test "A10: the second acquire of a running stream that its client gives up leaves the slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    acquire u1 r1
    answer 204 held
    kill -STOP "$REDIS_PID"
    acquire u1 r1 -m 0.03
    eq "$STATUS" 000
    kill -CONT "$REDIS_PID"
    always 400 slots_are u1 1
    heartbeat u1 r1
    eq "$STATUS" 204
    acquire u1 r2
    answer 403 denied stream_limit_reached
}

@test "A10: an acquire that failed open takes no slot once Redis answers" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 ACQUIRE_TIMEOUT=100ms
    acquire u1 warm-up
    release u1 warm-up
    kill -STOP "$REDIS_PID"
    fastest acquire_another u1
    answer 204 failopen timeout
    within "$TOOK" 90 200 "ms that the caller waited"
    kill -CONT "$REDIS_PID"
    eventually 3 slots_are u1 0
    always 300 slots_are u1 0
}

# whole_seconds MS: rounded up, at least 1.
whole_seconds() { echo $(($1 > 1000 ? ($1 + 999) / 1000 : 1)); }

acquire_another() {
    ANOTHER=$((${ANOTHER:-0} + 1))
    acquire "$1" "another$ANOTHER"
}

@test "A08: a plan decides the limit, a trusted limit beats the plan, an unknown plan means the default" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 LIMITS=free:1,paid:3
    acquire u1 r1 -H 'X-Plan: paid'
    eq "$(header X-Stream-Limit)" 3
    acquire u2 r1 -H 'X-Plan: paid' -H 'X-Stream-Limit: 2'
    eq "$(header X-Stream-Limit)" 2
    local i
    for i in 1 2 3; do
        acquire u3 r1 -H 'X-Plan: gold'
        answer 204 held
        eq "$(header X-Stream-Limit)" 1
    done
    eq "$(grep -c gold "$STREAMCAP_LOG")" 1 "warnings about the unknown plan"
}

@test "A01: in shadow mode the user over the cap streams on, uncounted" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 ENFORCE=false
    acquire u1 r1
    answer 204 held
    acquire u1 r2
    answer 204 uncounted shadow
    eq "$(header X-Stream-Used)" 1
    eq "$(slots u1)" 1
}
