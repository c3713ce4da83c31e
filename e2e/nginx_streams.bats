#!/usr/bin/env bats
# A stream's slot from beginning to end, through nginx.conf.example: it lives as long as the stream and
# is free within moments of its end, however it ends.

load lib

all_up() {
    start_redis
    start_streamcap "$@"
    start_backend RELEASE=false
    start_nginx
}

@test "R04: a stream that ends, or whose client leaves, frees its slot at once through nginx's line alone" {
    all_up DEFAULT_LIMIT=2 SLOT_TTL=60s
    QUERY='?for=1500ms' open_stream ends u1
    eq "$(slots u1)" 1
    open_stream leaves u1
    eq "$(slots u1)" 2
    eventually 4 slots_are u1 1
    end KILL "$STREAM_PID"
    eventually 3 slots_are u1 0
}

@test "H09: the sidecar, the backend and the log name one id, nginx's own" {
    all_up DEFAULT_LIMIT=1
    open_stream one u1 -H 'X-Request-Id: mine'
    local id
    id=$(first_event one id)
    [[ $id =~ ^[0-9a-f]{32}$ ]] || fail "the backend got the id '$id'"
    eq "$(redis ZRANGE "$(slots_key u1)" 0 -1)" "$id" "the slot's name"
    heartbeat u1 mine
    eq "$STATUS" 410
    heartbeat u1 "$id"
    eq "$STATUS" 204
    end KILL "$STREAM_PID"
    eventually 3 access_log_has "id=$id"
}

@test "A10: who reloads five times can stream at limit 1, at once" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    local i began
    for i in 1 2 3 4 5; do
        if ((i % 2)); then
            # Left while the stream runs.
            open_stream "reload$i" u1
        else
            # Left while the acquire is under way: Redis is kept from answering it.
            kill -STOP "$REDIS_PID"
            begin_stream "reload$i" u1
            eventually 5 nginx_asks_the_sidecar
        fi
        end KILL "$STREAM_PID"
        kill -CONT "$REDIS_PID"
    done
    began=$(now_ms)
    eventually 2 streams_now u1
    under $(($(now_ms) - began)) 1000 "ms until the last reload streams"
    eventually 3 slots_are u1 0
    always 200 slots_are u1 0
}

streams_now() {
    stream "$1"
    [[ $STATUS == 200 ]] && grep -q '"slot":"held"' "$BODY"
}

# An acquire is under way: the sidecar holds a connection to a Redis that doesn't read.
nginx_asks_the_sidecar() {
    [[ -n $(ss -Hxp 2>/dev/null | awk -v socket="$REDIS_SOCKET" '$5 == socket && $3 > 0') ]]
}

@test "A10: clients that leave within milliseconds leave nothing behind" {
    all_up DEFAULT_LIMIT=3 SLOT_TTL=60s
    local i
    for ((i = 1; i <= 30; i++)); do
        # From before the connection stands until after the first event.
        curl -s -m "0.00$((i % 9 + 1))" -o /dev/null -H 'Authorization: Bearer u1' "$NG/stream/x" || true
    done
    eventually 2 slots_are u1 0
    always 300 slots_are u1 0
    stream u1
    eq "$STATUS" 200
}

@test "R06: a dead backend: 502, and no slot stays" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    end KILL "$BACKEND_PID"
    local i
    for i in 1 2 3 4 5; do
        eventually 3 slots_are u1 0
        stream u1
        eq "$STATUS" 502
    done
    eventually 3 slots_are u1 0
    start_backend LISTEN="$BACKEND_ADDRESS"
    stream u1
    eq "$STATUS" 200
}

@test "R06: the backend dies in mid-stream: the slot is free within a second" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    open_stream one u1
    eq "$(slots u1)" 1
    end KILL "$BACKEND_PID"
    eventually 1 slots_are u1 0
}

@test "R06: a 502 through error_page at the level of the server still frees the slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    BACKENDS=(127.0.0.1:9)
    NGINX_SED=('s#^        server_name _;#&\n        location = /sorry { return 502 sorry; }#'
        's#            error_page 401 = @stream_refused;#            error_page 502 /sorry;\n&#')
    start_nginx
    stream u1
    eq "$STATUS $(cat "$BODY")" '502 sorry'
    eventually 3 slots_are u1 0
    stream u1
    eq "$STATUS" 502
}

@test "H09: nginx reloads with streams running: their slots live on and end with them" {
    all_up DEFAULT_LIMIT=2 SLOT_TTL=2s HEARTBEAT_INTERVAL=300ms
    open_stream one u1
    local one=$STREAM_PID
    reload_nginx
    open_stream two u1
    eq "$(stream_status two)" 200
    stream u1
    eq "$STATUS" 429
    # Longer than a slot lives without heartbeats.
    always 2600 slots_are u1 2
    reload_nginx
    end KILL "$one"
    eventually 3 slots_are u1 1
    end KILL "$STREAM_PID"
    eventually 3 slots_are u1 0
}

# tls: the file's own TLS lines with the # taken away, and a certificate of ours; sets NG_TLS.
tls() {
    NGINX_DIR=$DIR/nginx
    mkdir -p "$NGINX_DIR"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
        -keyout "$NGINX_DIR/tls.key" -out "$NGINX_DIR/tls.crt" 2>/dev/null
    local port
    port=$(free_port)
    NG_TLS=https://127.0.0.1:$port
    NGINX_SED+=("s/# listen 8443 ssl http2;/listen 127.0.0.1:$port ssl http2;/" 's/# ssl_certificate/ssl_certificate/')
}

# Three streams of one curl over HTTP/2; CURL_PID.
three_streams_of_one_connection() {
    local i config=()
    for i in 1 2 3; do
        ((i == 1)) || config+=(--next)
        config+=(-sS -N -k --http2 -H 'Authorization: Bearer u1' -o "$DIR/h$i.body" -D "$DIR/h$i.head"
            -w "%{num_connects}\n" "${@:i:1}")
    done
    launch curl-h2 curl --parallel --no-progress-meter "${config[@]}"
    CURL_PID=$LAUNCHED
}

@test "A07: HTTP/2: three streams of one connection are three slots that end one by one" {
    tls
    all_up DEFAULT_LIMIT=3 SLOT_TTL=60s
    three_streams_of_one_connection "$NG_TLS/stream/a" "$NG_TLS/stream/b?for=2s" "$NG_TLS/stream/c"
    eventually 3 began h1
    eventually 3 began h2
    eventually 3 began h3
    eq "$(stream_status h1) $(stream_status h2) $(stream_status h3)" '200 200 200'
    grep -q '^HTTP/2 200' "$DIR/h1.head"
    eq "$(ss -Htn state established "dport = :${NG_TLS##*:}" | wc -l)" 1 connections
    eq "$(cat "$DIR"/h?.body | sed -n 's/^data: {/{/p' | jq -r .id | sort -u | wc -l)" 3 "different ids"
    eq "$(slots u1)" 3
    request -k --http2 -H 'Authorization: Bearer u1' "$NG_TLS/stream/d"
    eq "$STATUS" 429
    eq "$(cat "$BODY")" '{"error":"stream_limit_reached","limit":3,"used":3}' body
    within "$(header retry-after)" 1 60 retry-after
    eventually 3 slots_are u1 2
    request -k --http2 -H 'Authorization: Bearer u1' "$NG_TLS/stream/d?for=20ms"
    eq "$STATUS" 200
    end KILL "$CURL_PID"
    eventually 3 slots_are u1 0
}

@test "A07: HTTP/2: giving one stream of a connection up (RST_STREAM) frees its slot and no other" {
    tls
    all_up DEFAULT_LIMIT=3 SLOT_TTL=60s
    launch curl-h2 curl --parallel --no-progress-meter \
        -sS -N -k --http2 -H 'Authorization: Bearer u1' -o "$DIR/h1.body" "$NG_TLS/stream/a" --next \
        -sS -N -k --http2 -H 'Authorization: Bearer u1' -o "$DIR/h2.body" -m 1 "$NG_TLS/stream/b"
    eventually 3 began h1
    eventually 3 began h2
    eq "$(slots u1)" 2
    eventually 3 slots_are u1 1
    eq "$(redis ZRANGE "$(slots_key u1)" 0 -1)" "$(first_event h1 id)" "the slot that stays"
    always 300 slots_are u1 1
}

@test "A14: a WebSocket holds one slot for as long as it is open, and is refused at the limit" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=2s HEARTBEAT_INTERVAL=300ms
    launch ws python3 "$BATS_TEST_DIRNAME/websocket.py" "$NG/ws/echo" u1 hello
    local ws=$LAUNCHED
    eventually 3 grep -q '^echo hello$' "$DIR/ws.out"
    eq "$(slots u1)" 1
    launch second python3 "$BATS_TEST_DIRNAME/websocket.py" "$NG/ws/echo" u1 hello
    exit_status "$LAUNCHED" 3
    eq "$(cat "$DIR/second.out")" 'refused 429'
    # Longer than a slot lives without heartbeats.
    always 2600 slots_are u1 1
    end KILL "$ws"
    eventually 3 slots_are u1 0
}

# acquire_took: how long the acquire of the last request took, in ms, by nginx's own log.
acquire_took() {
    local seconds
    eventually 2 test -s "$NGINX_DIR/access.log" >&2
    seconds=$(sed -n 's/.* acquire=\([0-9.]*\)$/\1/p' "$NGINX_DIR/access.log" | tail -n 1)
    echo $((10#${seconds/./}))
}

post_the_body() {
    rm -f "$DIR/request.body"
    stream u1 --data-binary "@$DIR/body"
    grep -q '"slot":"held"' "$BODY"
    eventually 2 slots_are u1 0
    TOOK=$(acquire_took)
}

@test "N06: a POST of 10 MB: the acquire answers within 100 ms, with and without nginx's two directives" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=60s
    start_backend
    head -c 10485760 /dev/zero >"$DIR/body"
    local edits
    for edits in '' '/proxy_pass_request_body off;/d' '/proxy_pass_request_headers off;/d' '/proxy_set_header Content-Length "";/d' \
        '/proxy_pass_request_body off;/d; /proxy_pass_request_headers off;/d; /proxy_set_header Content-Length "";/d'; do
        NGINX_SED=("$edits")
        start_nginx
        fastest post_the_body
        eq "$STATUS" 200 "status with '$edits'"
        under "$TOOK" 100 "ms of the acquire with '$edits'"
        end TERM "$NGINX_PID"
        rm "$NGINX_DIR/access.log"
    done
}

@test "N06: a Content-Length whose body comes late or never holds a slot only while the client stays" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    local connection
    exec {connection}<>"/dev/tcp/127.0.0.1/${NG##*:}"
    printf 'POST /stream/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer u1\r\nContent-Length: 77\r\n\r\n' >&"$connection"
    eventually 3 slots_are u1 1
    exec {connection}>&-
    eventually 3 slots_are u1 0
    eventually 3 access_log_has 'slot=held'
}

@test "H02: Redis is flushed while streams run: heartbeats say 410, new streams start, nothing is 5xx" {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=60s
    start_backend HEARTBEAT=100ms
    start_nginx
    open_stream one u1
    local one=$STREAM_PID
    open_stream two u1
    eq "$(slots u1)" 2
    redis FLUSHALL
    heartbeat u1 "$(first_event one id)"
    eq "$STATUS" 410
    eq "$(header X-Stream-Reason)" not_held
    # The backends go on heartbeating, and nothing comes back.
    eventually 3 grep -q 'no longer holds a slot' "$DIR/backend1.err"
    always 300 no_keys
    open_stream three u1
    open_stream four u1
    eq "$(stream_status three) $(stream_status four)" '200 200'
    stream u1
    eq "$STATUS" 429
    # The two that were forgotten still stream, and their end frees nobody else's slot.
    refute ended "$one"
    end KILL "$one"
    always 300 slots_are u1 2
    refute grep -q ' 50[0-9] ' "$NGINX_DIR/access.log"
}

@test "N15: over a unix socket hundreds of acquires are all answered, with connections kept and not" {
    start_redis
    start_streamcap "LISTEN=unix:$DIR/streamcap.sock" DEFAULT_LIMIT=-1 ACQUIRE_TIMEOUT=2s
    SC_ADDRESS=unix:$DIR/streamcap.sock
    start_backend STREAMCAP=
    NGINX_SED=('s#proxy_read_timeout    300ms;#proxy_read_timeout 5s;#')
    start_nginx
    local i
    for ((i = 1; i <= 300; i++)); do
        printf 'url = "%s/stream/x?for=1ms"\noutput = /dev/null\nheader = "Authorization: Bearer u%s"\nwrite-out = "%%{http_code}\\n"\nnext\n' "$NG" "$((i % 20))"
    done | sed '$d' | curl -sS --no-progress-meter --parallel --parallel-max 20 -K - >"$DIR/statuses"
    eq "$(sort "$DIR/statuses" | uniq -c | tr -s ' ')" ' 300 200'
    eventually 2 no_keys
    eq "$(grep -c 'slot=held' "$NGINX_DIR/access.log")" 300 "streams that held a slot"
    for ((i = 1; i <= 100; i++)); do
        curl -s -o /dev/null -w '%{http_code}\n' --unix-socket "$DIR/streamcap.sock" -H 'X-User-Id: u1' \
            -H "X-Request-Id: r$i" -H 'Connection: close' http://streamcap/acquire
    done >"$DIR/statuses"
    eq "$(sort "$DIR/statuses" | uniq -c | tr -s ' ')" ' 100 204'
    refute grep -qi 'cannot assign\|connect() ' "$NGINX_DIR/error.log"
}
