#!/usr/bin/env bats
# What clients see of a decision through nginx.conf.example, and which requests are asked about at all.

load lib

# all_up [settings of streamcap...]: Redis, streamcap, one backend and nginx.
all_up() {
    start_redis
    start_streamcap "$@"
    start_backend
    start_nginx
}

@test "N01 N03: the stream past the limit gets a 429 in JSON with Retry-After, never a 500" {
    all_up DEFAULT_LIMIT=1 LIMITS=free:1,paid:3 SLOT_TTL=30s HEARTBEAT_INTERVAL=5s
    open_stream one u1
    eq "$(stream_status one)" 200
    stream u1
    eq "$STATUS" 429
    eq "$(header Content-Type)" application/json Content-Type
    within "$(header Retry-After)" 1 30 Retry-After
    eq "$(header Cache-Control)" no-store Cache-Control
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":1,"used":1}' body
    refute grep -q 'auth request unexpected status' "$NGINX_DIR/error.log"

    # The plan comes from the user's key: three run, the fourth doesn't.
    open_stream p1 paid-1
    open_stream p2 paid-1
    open_stream p3 paid-1
    eq "$(stream_status p1) $(stream_status p2) $(stream_status p3)" '200 200 200'
    stream paid-1
    eq "$STATUS" 429
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":3,"used":3}' body
}

@test "N03: under limit 0 there is no Retry-After" {
    all_up DEFAULT_LIMIT=0
    stream u1
    eq "$STATUS" 429
    eq "$(header Retry-After)" '' Retry-After
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":0,"used":0}' body
}

@test "N01: the demo keys of the file are two users with a plan each" {
    all_up LIMITS=free:1,paid:3
    open_stream one demo-paid
    eq "$(first_event one user)" u-paid
    open_stream two demo-free
    eq "$(first_event two user)" u-free
    stream demo-free
    eq "$STATUS" 429
    stream demo-paid
    eq "$STATUS" 200
}

@test "N01: where the store is away under ON_STORE_FAILURE=closed the client gets a 503 that says so" {
    SC_ADDRESS=
    start_streamcap "REDIS_URL=unix://$DIR/nobody.sock" ON_STORE_FAILURE=closed
    start_backend
    start_nginx
    stream u1
    eq "$STATUS" 503
    eq "$(header Retry-After)" 1 Retry-After
    eq "$(header Content-Type)" application/json Content-Type
    eq "$(cat "$BODY")" '{"error":"store_unavailable"}' body
}

@test "A11: without a user the stream runs uncounted, and gets a 401 under ON_MISSING_ID=deny" {
    all_up DEFAULT_LIMIT=0
    request "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    grep -q '"user":"","id":"[0-9a-f]\{32\}","slot":"uncounted","reason":"no_user"' "$BODY"
    request -H 'Authorization: Bearer Nobody_Knows' "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    no_keys
    end TERM "$STREAMCAP_PID"
    start_streamcap_again ON_MISSING_ID=deny
    request "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    eq "$(header Content-Type)" application/json Content-Type
    eq "$(cat "$BODY")" '{"error":"no_user"}' body
}

@test "N01: a 403 of another access rule stays a 403, and a 403 or 401 of the backend passes untouched" {
    start_redis
    start_streamcap DEFAULT_LIMIT=5
    start_backend
    # A backend of nginx's own, behind the gate, that says 403 and 401 by itself.
    NGINX_SED=('s#^    server {#    server { listen unix:'"$DIR"'/own.sock; location /stream/forbidden { return 403 own; } location /stream/login { return 401 own; } }\n&#')
    BACKENDS=("unix:$DIR/own.sock")
    start_nginx
    stream_at() { request -H 'Authorization: Bearer u1' "$NG/stream/$1"; }
    stream_at forbidden
    eq "$STATUS $(cat "$BODY")" '403 own'
    stream_at login
    eq "$STATUS $(cat "$BODY")" '401 own'
    end TERM "$NGINX_PID"
    NGINX_SED=('s#satisfy all;#satisfy all; deny all;#')
    start_nginx
    stream u1
    eq "$STATUS" 403
    eq "$(header Retry-After)" ''
    refute grep -q stream_limit_reached "$BODY"
}

@test "N09: auth_basic before the gate answers 401 with its challenge, and no slot is taken" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('s#satisfy all;#auth_basic "streams"; auth_basic_user_file '"$DIR"'/passwords;#'
        's#^        default            "";.*#        default $remote_user;#'
        '/"~^Bearer/d;/keys\*/d')
    echo "alice:$(openssl passwd -apr1 secret)" >"$DIR/passwords"
    start_nginx
    request -u alice:wrong "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    eq "$(header WWW-Authenticate)" 'Basic realm="streams"' WWW-Authenticate
    no_keys
    request -u alice:secret "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    grep -q '"user":"alice".*"slot":"held"' "$BODY"
    # Fails open only behind the login.
    end KILL "$STREAMCAP_PID"
    request -u alice:wrong "$NG/stream/x?for=20ms"
    eq "$STATUS" 401
    request -u alice:secret "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    grep -q '"user":"alice".*"slot":"failopen","reason":"unavailable"' "$BODY"
}

@test "A14: a CORS preflight and a HEAD pass at the limit and take no slot" {
    all_up DEFAULT_LIMIT=1
    open_stream one u1
    request -X OPTIONS -H 'Authorization: Bearer u1' -H 'Origin: https://a' \
        -H 'Access-Control-Request-Method: POST' "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    request --head -H 'Authorization: Bearer u1' "$NG/stream/x?for=20ms"
    eq "$STATUS" 200
    eq "$(slots u1)" 1
    stream u1
    eq "$STATUS" 429
}

@test "A15: with auth_request at the level of the server, health and other pages take no slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('s#^        server_name _;#&\n        auth_request /_streamcap/acquire;#')
    start_nginx
    launch monitor redis-cli -s "$REDIS_SOCKET" MONITOR
    eventually 3 grep -q OK "$DIR/monitor.out"
    request -H 'Authorization: Bearer u1' "$NG/healthz"
    eq "$STATUS" 200
    request -H 'Authorization: Bearer u1' "$NG/favicon.ico"
    eq "$STATUS" 404
    stream u1
    eq "$STATUS" 200
    stream u1
    eventually 3 grep -q /stream/short "$DIR/monitor.out"
    # Ids that were acquired: the two streams' alone. The end-of-request line releases, and takes nothing.
    eq "$(grep -c 'healthz\|favicon' "$DIR/monitor.out" || true)" 0 "acquires with another page's address"
}

@test "A04: try_files into a named location runs one stream on one slot at limit 1" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('s#^        server_name _;#&\n        auth_request /_streamcap/acquire;\n        location /files/ { try_files $uri @app; }\n        location @app { rewrite ^/files/(.*) /stream/$1 break; proxy_pass http://stream_backend; proxy_http_version 1.1; proxy_set_header X-User-Id $stream_user; proxy_set_header X-Request-Id $request_id; proxy_set_header X-Stream-Slot held; proxy_buffering off; }#')
    start_nginx
    launch curl-one curl -sS -N -o "$DIR/one.body" -H 'Authorization: Bearer u1' "$NG/files/x"
    eventually 3 began one
    eq "$(slots u1)" 1
    stream u1
    eq "$STATUS" 429
}

@test "A04: an X-Accel-Redirect runs the acquire twice and takes one slot at limit 1" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('s#^    server {#    server { listen unix:'"$DIR"'/hop.sock; add_header X-Accel-Redirect /stream/after always; location / { return 200; } }\n&#'
        's#^        location = /healthz {#        location /hop/ { auth_request /_streamcap/acquire; proxy_pass http://unix:'"$DIR"'/hop.sock; }\n&#')
    start_nginx
    launch monitor redis-cli -s "$REDIS_SOCKET" MONITOR
    eventually 3 grep -q OK "$DIR/monitor.out"
    launch curl-one curl -sS -N -o "$DIR/one.body" -H 'Authorization: Bearer u1' "$NG/hop/x"
    eventually 3 began one
    eq "$(first_event one slot)" held
    eq "$(slots u1)" 1
    # Both tell Redis the address that the client asked for.
    eventually 3 told_redis_twice /hop/x
    stream u1
    eq "$STATUS" 429
}

told_redis_twice() { (($(grep -c "$1" "$DIR/monitor.out") >= 2)); }

@test "N04: nginx takes both files as they are, and finds nothing to warn of" {
    local file
    for file in nginx.conf.example nginx-two-hop.conf.example; do
        NGINX_DIR=$DIR
        SC_ADDRESS=127.0.0.1:1 SC_LOG_ADDRESS=127.0.0.1:1 BACKENDS=(127.0.0.1:1) SIGN_IN_ADDRESS=127.0.0.1:1
        write_nginx_conf "$file" 1
        nginx -t -c "$DIR/nginx.conf" 2>"$DIR/test"
        grep -q 'test is successful' "$DIR/test"
        refute grep -E '\[(warn|error|emerg)\]' "$DIR/test"
    done
}

@test "N13: an auth_request address with a variable fails; the example needs no arguments" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('s#auth_request     /_streamcap/acquire;#auth_request /_streamcap/acquire?user=$remote_user;#')
    start_nginx
    stream u1
    eq "$STATUS" 500
    end TERM "$NGINX_PID"
    NGINX_SED=()
    start_nginx
    request -H 'Authorization: Bearer u1' "$NG/stream/x?for=20ms&user=u2"
    eq "$STATUS" 200
    grep -q '"user":"u1".*"slot":"held"' "$BODY"
}

@test "N14: headers set at an outer level don't reach the sidecar, and it says which one is missing" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1
    start_backend
    NGINX_SED=('/proxy_set_header X-User-Id         \$stream_user;/d'
        's#^        server_name _;#&\n        proxy_set_header X-User-Id $stream_user;#')
    start_nginx
    stream u1
    eq "$STATUS" 200
    grep -q '"slot":"uncounted","reason":"no_user"' "$BODY"
    no_keys
    grep '"level":"warn"' "$STREAMCAP_LOG" | grep -qi 'x-user-id'
}

@test "N25: satisfy any beside an allow that passes skips the sidecar, as the file says" {
    start_redis
    start_streamcap DEFAULT_LIMIT=0
    start_backend
    NGINX_SED=('s#satisfy all;#satisfy any; allow 127.0.0.1; deny all;#')
    start_nginx
    stream u1
    eq "$STATUS" 200
    grep -q '"slot":"","reason":""' "$BODY"
    end TERM "$NGINX_PID"
    NGINX_SED=('s#satisfy all;#satisfy all; allow 127.0.0.1; deny all;#')
    start_nginx
    stream u1
    eq "$STATUS" 429
}

@test "N10: nginx refuses a second auth_request, and runs none inside another" {
    start_redis
    start_streamcap DEFAULT_LIMIT=0
    start_backend
    NGINX_SED=('s#auth_request     /_streamcap/acquire;#auth_request /a; auth_request /_streamcap/acquire;#')
    NGINX_DIR=$DIR write_nginx_conf nginx.conf.example 1
    refute nginx -t -c "$DIR/nginx.conf" 2>"$DIR/test"
    grep -q 'directive is duplicate' "$DIR/test"
    # Nested: the inner one is skipped in silence, so nobody is capped, even at limit 0.
    NGINX_SED=('s#auth_request     /_streamcap/acquire;#auth_request /nested;#'
        's#^        location = /healthz {#        location = /nested { auth_request /_streamcap/acquire; proxy_pass http://stream_backend/healthz; }\n&#')
    start_nginx
    stream u1
    eq "$STATUS" 200
    no_keys
}
