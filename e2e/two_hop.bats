#!/usr/bin/env bats
# nginx-two-hop.conf.example: people are signed in by an auth_request of their own, which fails closed,
# and slots are taken one server further in, which fails open.

load lib

all_up() {
    start_redis
    start_streamcap "$@"
    start_backend
    launch sign_in python3 "$BATS_TEST_DIRNAME/sign_in.py"
    SIGN_IN_PID=$LAUNCHED
    eventually 5 grep -q '^listening ' "$DIR/sign_in.out"
    SIGN_IN_ADDRESS=$(sed -n 's/^listening //p' "$DIR/sign_in.out")
    start_nginx nginx-two-hop.conf.example
}

@test "N10: both are asked: the sign-in service says who, the sidecar says how many" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    open_stream one u1
    eq "$(stream_status one)" 200
    eq "$(first_event one user) $(first_event one slot)" 'u1 held'
    grep -q '^asked u1$' "$DIR/sign_in.out"
    eq "$(redis ZRANGE "$(slots_key u1)" 0 -1)" "$(first_event one id)" "the slot's name"
    stream u1
    eq "$STATUS" 429
    within "$(header Retry-After)" 1 60 Retry-After
    eq "$(header Content-Type)" application/json Content-Type
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":1,"used":1}' body
    # Gone through both servers.
    end KILL "$STREAM_PID"
    eventually 3 slots_are u1 0
    redis --raw HVALS 'streamcap:{u1}:details'
}

@test "N10: a 401 beats a 429, and costs nobody a slot" {
    all_up DEFAULT_LIMIT=0
    request "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    request -H 'Authorization: Bearer not-a-name' "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    stream u1
    eq "$STATUS" 429
    no_keys
}

@test "N09: with the sidecar dead or hung, strangers still get a 401 and users their stream" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    open_stream one u1
    kill -STOP "$STREAMCAP_PID"
    request "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    fastest stream u1
    eq "$STATUS" 200
    within "$TOOK" 300 500 "ms, of which 300 are nginx's timeout and 20 the stream's"
    grep -q '"user":"u1".*"slot":"failopen","reason":"unavailable"' "$BODY"
    kill -CONT "$STREAMCAP_PID"
    stream u1
    eq "$STATUS" 429
    end KILL "$STREAMCAP_PID"
    request "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    stream u1
    eq "$STATUS" 200
    grep -q 'slot=failopen reason=unavailable' "$NGINX_DIR/stream-gate.log"
}

@test "N09: with the sign-in service dead or hung nobody gets in, and no slot is taken" {
    all_up DEFAULT_LIMIT=1
    NGINX_SED=('s#proxy_read_timeout    5s;#proxy_read_timeout 300ms;#')
    end TERM "$NGINX_PID"
    start_nginx nginx-two-hop.conf.example
    kill -STOP "$SIGN_IN_PID"
    stream u1
    eq "$STATUS" 500
    kill -CONT "$SIGN_IN_PID"
    stream u1
    eq "$STATUS" 200
    end KILL "$SIGN_IN_PID"
    stream u1
    eq "$STATUS" 500
    eventually 3 no_keys
}

@test "S02: a client names itself, its plan or its id in vain, through both servers" {
    all_up DEFAULT_LIMIT=1 LIMITS=paid:3 SLOT_TTL=60s
    open_stream one u1 -H 'X-Gate-User: victim' -H 'X-User-Id: victim' -H 'X-Request-Id: mine' -H 'X-Real-IP: 10.0.0.1'
    eq "$(first_event one user)" u1
    [[ $(first_event one id) =~ ^[0-9a-f]{32}$ ]]
    redis --raw HVALS 'streamcap:{u1}:details' | grep -q 127.0.0.1
    local header
    for header in 'X-Gate-User: victim' 'X-Gate-Plan: paid' 'X-Plan: paid' 'X-Stream-Limit: -1' 'X-Original-Method: OPTIONS' \
        "X-Request-Id: $(first_event one id)" "$(printf 'User-Agent: a\x01')"; do
        stream u1 -H "$header"
        eq "$STATUS" 429 "status with $header"
    done
    eq "$(keys | sort | tr '\n' ' ')" 'streamcap:{u1}:details streamcap:{u1}:slots '
}

@test "N10: WebSocket and 60 KB of cookies pass through both servers" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    launch ws python3 "$BATS_TEST_DIRNAME/websocket.py" "$NG/ws/echo" u1 hello
    eventually 3 grep -q '^echo hello$' "$DIR/ws.out"
    eq "$(slots u1)" 1
    end KILL "$LAUNCHED"
    eventually 3 slots_are u1 0
    stream u1 -H "Cookie: a=$(printf 'c%.0s' {1..60000})"
    eq "$STATUS" 200
}

@test "R06: a dead backend through both servers: 502, and no slot stays" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    end KILL "$BACKEND_PID"
    local i
    for i in 1 2 3; do
        eventually 3 slots_are u1 0
        stream u1
        eq "$STATUS" 502
    done
    eventually 3 slots_are u1 0
}
