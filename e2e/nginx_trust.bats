#!/usr/bin/env bats
# What a client sends changes nothing about its cap, and none of it turns into a 500.

load lib

# at_the_cap: u1 runs the one stream that it may.
at_the_cap() {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 LIMITS=free:1,paid:3 SLOT_TTL=60s
    start_backend
    start_nginx
    open_stream one u1
    eq "$(stream_status one)" 200
    eq "$(slots u1)" 1
}

# still_capped [curl arguments...]: u1's next stream is denied, and nobody has a slot but u1's first stream.
still_capped() {
    stream u1 "$@"
    eq "$STATUS" 429 "status with $*"
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":1,"used":1}' "body with $*"
    eq "$(keys | sort | tr '\n' ' ')" 'streamcap:{u1}:details streamcap:{u1}:slots ' "keys with $*"
    eq "$(slots u1)" 1 "slots with $*"
}

@test "S02: a client's own X-User-Id, X-Plan, X-Stream-Limit, X-Request-Id and X-Original-Method change nothing" {
    at_the_cap
    local id
    id=$(first_event one id)
    still_capped -H 'X-User-Id: victim'
    still_capped -H 'X-User-Id: victim' -H 'X-User-Id: victim'
    still_capped -H 'X_User_Id: victim' -H 'X-User_Id: victim'
    still_capped -H 'X-Plan: paid'
    still_capped -H 'X-Stream-Limit: -1'
    still_capped -H 'X-Stream-Limit: 99' -H 'X-Plan: paid' -H 'X-Stream-Slot: held' -H 'X-Stream-Reason: local'
    still_capped -H "X-Request-Id: $id"
    still_capped -H 'X-Original-Method: OPTIONS'
    still_capped -H 'X-Original-Method: HEAD' -H 'X-Original-URI: /elsewhere' -H 'X-Real-IP: 10.0.0.1'
    still_capped -H 'X-HTTP-Method-Override: OPTIONS' -X PATCH
}

@test "S02: without a key a client that calls itself somebody takes nobody's slot" {
    at_the_cap
    request -H 'X-User-Id: u1' -H 'X-Plan: paid' "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    grep -q '"user":"","id":"[0-9a-f]\{32\}","slot":"uncounted","reason":"no_user"' "$BODY"
    eq "$(slots u1)" 1
}

@test "S02: what the backend hears about user, id, slot and reason is nginx's, never the client's" {
    at_the_cap
    stream u2 -H 'X-User-Id: victim' -H 'X-Request-Id: mine' -H 'X-Stream-Slot: uncounted' -H 'X-Stream-Reason: shadow'
    eq "$STATUS" 200
    grep -q '"user":"u2","id":"[0-9a-f]\{32\}","slot":"held","reason":""' "$BODY"
    end KILL "$STREAMCAP_PID"
    stream u2 -H 'X-User-Id: victim' -H 'X-Request-Id: mine' -H 'X-Stream-Slot: held' -H 'X-Stream-Reason: local'
    eq "$STATUS" 200
    grep -q '"user":"u2","id":"[0-9a-f]\{32\}","slot":"failopen","reason":"unavailable"' "$BODY"
}

@test "S02: a header that comes twice, or names several users, is one user at most" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    request -H 'X-User-Id: u1' -H 'X-User-Id: u2' -H 'X-Request-Id: r1' "$SC/acquire"
    answer 204 uncounted no_user
    request -H 'X-User-Id: u1' -H 'X-Request-Id: r1' -H 'X-Request-Id: r1' "$SC/acquire"
    answer 204 uncounted no_request_id
    request -H 'X_User_Id: u1' -H 'X-Request-Id: r1' "$SC/acquire"
    answer 204 uncounted no_user
    no_keys
    acquire 'u1, u2' r1
    answer 204 held
    eq "$(keys | sort | tr '\n' ' ')" 'streamcap:{u1%2C%20u2}:details streamcap:{u1%2C%20u2}:slots '
}

@test "S01: as shipped, 20 streams with one X-Request-Id at limit 2 are two streams" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=60s ACQUIRE_TIMEOUT=2s
    start_backend
    NGINX_SED=('s#proxy_read_timeout    300ms;#proxy_read_timeout 6s;#')
    start_nginx
    local i
    for ((i = 1; i <= 20; i++)); do
        begin_stream "s$i" u1 -H 'X-Request-Id: same'
    done
    for ((i = 1; i <= 20; i++)); do
        eventually 5 test -s "$DIR/s$i.head"
        stream_status "s$i"
    done >"$DIR/statuses"
    eq "$(sort "$DIR/statuses" | uniq -c | xargs)" '2 200 18 429'
    eq "$(slots u1)" 2
}

@test "S01: with the client's id handed on, all of them run on one slot: why the file must not" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=60s
    start_backend
    NGINX_SED=('s#X-Request-Id      $request_id;#X-Request-Id $http_x_request_id;#')
    start_nginx
    local i
    for i in 1 2 3 4; do
        open_stream "s$i" u1 -H 'X-Request-Id: same'
        eq "$(stream_status "s$i")" 200
    done
    eq "$(slots u1)" 1
}

@test "S09: control characters in any header: the cap is what it was, and there is no 500" {
    at_the_cap
    local byte name value
    for byte in 01 08 09 0b 0c 1b 1f 7f; do
        value=$(printf '%b' "a\\x${byte}b")
        for name in User-Agent Cookie Referer Accept X-User-Id X-Plan X-Stream-Limit X-Request-Id X-Original-Method \
            X-Original-URI X-Real-IP X-Forwarded-For X-Anything; do
            still_capped -H "$name: $value"
        done
    done
    # Authorization alone says who one is: with such a byte in it, it is nobody's.
    request -H "$(printf 'Authorization: Bearer u1\x01')" "$NG/stream/x?for=20ms"
    eventually 3 access_log_has 'slot=uncounted reason=no_user'
    # A user with room gets a slot, and the answer is the backend's own, which may not like the byte.
    request -H 'Authorization: Bearer u2' -H "$(printf 'User-Agent: a\x01b')" "$NG/stream/x?for=20ms"
    eq "$STATUS" 400
    eventually 3 access_log_has '400 '
    grep ' 400 .* slot=held ' "$NGINX_DIR/access.log"
    refute grep -q ' 500 ' "$NGINX_DIR/access.log"
}

@test "S09: control characters and bytes beyond ASCII in the address change nothing" {
    at_the_cap
    local line
    for line in 'GET /stream/\x01 HTTP/1.1' 'GET /stream/a\x7fb HTTP/1.1' 'GET /stream/%00 HTTP/1.1' 'GET /stream/a b HTTP/1.1'; do
        raw "${NG#http://}" "$line\r\nHost: x\r\nAuthorization: Bearer u1\r\n\r\n"
        eq "$STATUS" 400 "status of $line"
    done
    for line in 'GET /stream/\xff\xfe HTTP/1.1' 'GET /stream/%0d%0a%01 HTTP/1.1' 'GET /stream/x?a=\xc3\x28 HTTP/1.1' \
        'GET http://x/stream/x HTTP/1.1' 'GET //stream//x HTTP/1.1' 'GET /a/../stream/x HTTP/1.1' 'GET /%73tream/x HTTP/1.1' \
        'POST /stream/x HTTP/1.0' 'BREW /stream/x HTTP/1.1' 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA /stream/x HTTP/1.1'; do
        raw "${NG#http://}" "$line\r\nHost: x\r\nAuthorization: Bearer u1\r\n\r\n"
        eq "$STATUS" 429 "status of $line"
    done
    eq "$(slots u1)" 1
}

@test "S09: odd bytes, quotes and 60 KB in what support is shown: the slot is held, and the details are one line" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    start_backend
    start_nginx
    local long
    long=$(printf 'a%.0s' {1..20000})
    stream u1 -H "User-Agent: $(printf 'q"\\{}\xff\xfe')$long"
    eq "$STATUS" 200
    grep -q '"slot":"held"' "$BODY"
    request -H 'Authorization: Bearer u2' -H "User-Agent: $long" "$NG/stream/$long?for=20ms&$long"
    eq "$STATUS" 200
    grep -q '"slot":"held"' "$BODY"
    eventually 3 no_keys
    open_stream three u3 -H 'User-Agent: agent/1 (x)'
    redis --raw HVALS 'streamcap:{u3}:details' >"$DIR/details"
    grep -q 'agent/1 (x)' "$DIR/details"
    grep -q '/stream/three' "$DIR/details"
    grep -q '127.0.0.1' "$DIR/details"
}

@test "S09: a user name of the client's own choice may hold anything: it is a user or nobody, never a 500" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    start_backend
    # The mistake that the file warns of: $remote_user without auth_basic.
    NGINX_SED=('s#^        default            "";.*#        default $remote_user;#' '/"Bearer demo/d; /keys\*/d')
    start_nginx
    local name
    for name in "$(printf 'a\x01b')" "$(printf 'a\nb')" "$(printf 'a\rb')" "$(printf 'a\x7f')" "$(printf 'u%.0s' {1..257})" \
        "$(printf 'u%.0s' {1..30000})"; do
        request -u "$name:" "$NG/stream/x?for=20ms"
        eq "$STATUS" 200 "status of $name"
        grep -q '"user":"","id":"[0-9a-f]*","slot":"uncounted","reason":"no_user"' "$BODY" || fail "$name got $(head -n 1 "$BODY")"
    done
    for name in "$(printf 'a\xffb')" 'a"b' 'a\b' '{a}' 'a b' ' a ' "$(printf 'u%.0s' {1..256})"; do
        request -u "$name:" "$NG/stream/x?for=20ms"
        eq "$STATUS" 200 "status of $name"
        grep -q '"slot":"held"' "$BODY" || fail "$name got $(head -n 1 "$BODY")"
        # The end-of-request line names the same user, whatever the bytes.
        eventually 3 no_keys
    done
}

@test "N01: 60 KB of cookies: the stream starts, and the cap is what it was" {
    at_the_cap
    local cookie
    cookie=$(printf 'c%.0s' {1..60000})
    still_capped -H "Cookie: a=$cookie"
    stream u2 -H "Cookie: a=$cookie"
    eq "$STATUS" 200
    grep -q '"slot":"held"' "$BODY"
    # As browsers send many, and other headers as long.
    stream u2 -H "Cookie: a=$cookie" -H "X-Anything: $cookie" -H "User-Agent: $cookie"
    eq "$STATUS" 200
    grep -q '"slot":"held"' "$BODY"
}

@test "S03: the sidecar's own endpoints can't be reached through nginx" {
    at_the_cap
    local path id
    id=$(first_event one id)
    for path in /acquire /heartbeat /release /release/ /metrics /admin /admin/ /admin/api/slots /_streamcap/acquire \
        /_streamcap/ /_streamcap/acquire/ /_streamcap/../acquire /debug/pprof/; do
        request -X POST --path-as-is -H 'X-User-Id: u1' -H "X-Request-Id: $id" -H 'Authorization: Bearer u1' "$NG$path"
        eq "$STATUS" 404 "status of $path"
    done
    eq "$(slots u1)" 1
    # What answers here is the backend's health, not the sidecar's.
    request "$NG/healthz"
    eq "$STATUS" 200
    refute grep -q store "$BODY"
}

@test "S03: the admin listener takes no slots, and has no admin page without ADMIN_USERS" {
    start_streamcap
    local path
    for path in /admin/ /admin /admin/api/slots?user=u1 /acquire /heartbeat /release; do
        request -H 'X-User-Id: u1' -H 'X-Request-Id: r1' "$SC_ADMIN$path"
        eq "$STATUS" 404 "status of $path"
    done
    request "$SC_ADMIN/healthz"
    eq "$STATUS" 200
}

@test "S03: with BACKEND_TOKEN a heartbeat or release without it is a 401 and changes nothing" {
    start_redis
    start_streamcap BACKEND_TOKEN=secret SLOT_TTL=60s
    acquire u1 r1
    answer 204 held
    local before
    before=$(expiry u1 r1)
    release u1 r1
    eq "$STATUS" 401
    release u1 r1 -H 'Authorization: Bearer wrong'
    eq "$STATUS" 401
    heartbeat u1 r1 -H 'Authorization: Basic secret'
    eq "$STATUS" 401
    eq "$(header Content-Type)" application/problem+json Content-Type
    batch /release '{"slots":[{"user":"u1","id":"r1"}]}'
    eq "$STATUS" 401
    eq "$(expiry u1 r1)" "$before" "the slot's expiry"
    heartbeat u1 r1 -H 'Authorization: Bearer secret'
    eq "$STATUS" 204
    release u1 r1 -H 'Authorization: Bearer secret'
    eq "$STATUS" 204
    eq "$(slots u1)" 0
}

@test "S04: another user's slot can be neither kept nor released" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    acquire u1 r1
    answer 204 held
    local before
    before=$(expiry u1 r1)
    release u2 r1
    eq "$STATUS" 204
    eq "$(header X-Stream-Released)" 0 X-Stream-Released
    release u2 never-there
    eq "$STATUS" 204
    eq "$(header X-Stream-Released)" 0 X-Stream-Released
    heartbeat u2 r1
    eq "$STATUS" 410
    eq "$(slots u1)" 1
    eq "$(expiry u1 r1)" "$before" "the slot's expiry"
}

@test "S09: ids and users with quotes, braces, long or not UTF-8 crash nothing, and every log line is JSON" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 LOG_LEVEL=debug
    local odd
    for odd in 'a"b' "a'b" 'a\b' '{a}' '{' '}' '%' 'a/b' '*' '[x]' '<img src=x>' "$(printf '\xff')" "$(printf 'a\xc3\x28')" 'ü' '%probe'; do
        acquire u1 "$odd"
        answer 204 uncounted no_request_id
        acquire "$odd" r1
        answer 204 held
        acquire "$odd" r2
        answer 403 denied stream_limit_reached
        heartbeat "$odd" r1
        eq "$STATUS" 204 "heartbeat of user $odd"
        release "$odd" r1
        eq "$(header X-Stream-Released)" 1 "released of user $odd"
    done
    acquire u1 "$(printf 'r%.0s' {1..60000})"
    answer 204 uncounted no_request_id
    no_keys
    jq -e . "$STREAMCAP_LOG" >/dev/null
}
