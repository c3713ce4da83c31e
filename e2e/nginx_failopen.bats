#!/usr/bin/env bats
# The sidecar dead, hung or talking nonsense, through nginx.conf.example: every stream starts, within
# nginx's timeouts, and the cap is back as soon as the sidecar answers.

load lib

all_up() {
    start_redis
    start_streamcap "$@"
    start_backend
    start_nginx
}

# fake_sidecar ANSWER: something on the sidecar's port that says the same (with \r and \n) to everybody.
fake_sidecar() {
    launch fake python3 -c '
import socket, sys
host, port = sys.argv[1].rsplit(":", 1)
server = socket.create_server((host, int(port)))
print("listening", flush=True)
while True:
    connection = server.accept()[0]
    connection.recv(65536)
    connection.sendall(sys.argv[2].encode().decode("unicode_escape").encode("latin-1"))
    connection.close()
' "$SC_ADDRESS" "$1"
    eventually 5 grep -q listening "$DIR/fake.out"
}

# failed_open: the last stream started, and its backend was told that nobody counted it.
failed_open() {
    eq "$STATUS" 200
    grep -q '"slot":"failopen","reason":"unavailable"' "$BODY" || fail "the backend saw: $(head -n 1 "$BODY")"
}

# enforces USER: who holds one slot already is denied the next stream.
enforces() {
    stream "$1"
    [[ $STATUS == 429 ]]
}

@test "N08: the sidecar is dead: streams start at once, the log says so, and the cap returns with it" {
    all_up DEFAULT_LIMIT=1
    open_stream one u1
    enforces u1
    end KILL "$STREAMCAP_PID"
    fastest stream u1
    failed_open
    under "$TOOK" 100 "ms, of which 20 are the stream's"
    eventually 3 access_log_has 'slot=failopen reason=unavailable acquire='
    start_streamcap_again
    enforces u1
    eq "$(slots u1)" 1
}

@test "N08 N24: the sidecar hangs (SIGSTOP): each stream starts within nginx's read timeout, the cap returns with it" {
    all_up DEFAULT_LIMIT=1 SLOT_TTL=60s
    open_stream one u1
    enforces u1
    kill -STOP "$STREAMCAP_PID"
    fastest stream u1
    failed_open
    within "$TOOK" 300 500 "ms, of which 300 are nginx's timeout and 20 the stream's"
    kill -CONT "$STREAMCAP_PID"
    enforces u1
    # What it finds in its sockets after the stop came from clients that nginx let through long ago.
    always 500 slots_are u1 1
}

@test "N08: the sidecar answers 500 or 503: streams start, and the cap returns with it" {
    all_up DEFAULT_LIMIT=1
    open_stream one u1
    end KILL "$STREAMCAP_PID"
    local status
    for status in '500 Internal Server Error' '502 Bad Gateway' '503 Service Unavailable' '504 Gateway Timeout'; do
        fake_sidecar "HTTP/1.1 $status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        stream u1
        failed_open
        end KILL "$LAUNCHED"
    done
    start_streamcap_again
    enforces u1
}

@test "N08: the sidecar closes or resets each connection: streams start" {
    all_up DEFAULT_LIMIT=0
    end KILL "$STREAMCAP_PID"
    fake_sidecar ''
    stream u1
    failed_open
}

@test "N08: the sidecar answers 400 or 404: the client gets a 500, for opening on those would lift the cap" {
    all_up DEFAULT_LIMIT=0
    end KILL "$STREAMCAP_PID"
    local status
    for status in '400 Bad Request' '404 Not Found' '429 Too Many Requests' '302 Found'; do
        fake_sidecar "HTTP/1.1 $status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        stream u1
        eq "$STATUS" 500
        end KILL "$LAUNCHED"
    done
}

@test "N08: bytes that aren't HTTP on the sidecar's port: the client gets a 500, and the cap returns with it" {
    all_up DEFAULT_LIMIT=1
    open_stream one u1
    end KILL "$STREAMCAP_PID"
    fake_sidecar 'garbage\n'
    stream u1
    # nginx reads them as HTTP/0.9 with status 0, which no error_page of the acquire location catches.
    eq "$STATUS" 500
    grep -q 'auth request unexpected status: 0' "$NGINX_DIR/error.log"
    end KILL "$LAUNCHED"
    start_streamcap_again
    enforces u1
}

@test "N17: with two sidecars of which one hangs, each stream starts within one timeout and takes at most one slot" {
    start_redis
    start_streamcap DEFAULT_LIMIT=5 SLOT_TTL=60s
    local first_pid=$STREAMCAP_PID first=$SC_ADDRESS
    start_streamcap DEFAULT_LIMIT=5 SLOT_TTL=60s
    start_backend RELEASE=false STREAMCAP=
    NGINX_SED=("s#server $SC_ADDRESS max_fails=0;#server $first max_fails=0; &#")
    SC_LOG_ADDRESS=127.0.0.1:9
    start_nginx
    kill -STOP "$first_pid"
    local i open=0
    for i in 1 2 3 4; do
        stream "u$i"
        eq "$STATUS" 200
        under "$TOOK" 1000 "ms of stream $i"
        [[ $(slots "u$i") == 1 ]] || open=$((open + 1))
    done
    within "$open" 1 3 "streams that asked the hung one and so started uncounted"
    kill -CONT "$first_pid"
    # What the hung one finds later is undone.
    for i in 1 2 3 4; do
        within "$(slots "u$i")" 0 1 "slots of u$i"
    done
}

@test "N18: one of two sidecars dies under load: no client sees it" {
    start_redis
    start_streamcap DEFAULT_LIMIT=-1
    local first_pid=$STREAMCAP_PID first=$SC_ADDRESS i
    start_streamcap DEFAULT_LIMIT=-1
    start_backend
    NGINX_SED=("s#server $SC_ADDRESS max_fails=0;#server $first max_fails=0; &#")
    start_nginx
    for ((i = 1; i <= 30; i++)); do
        [[ $i != 10 ]] || end KILL "$first_pid"
        stream u1
        eq "$STATUS" 200
    done
    within "$(grep -c 'slot=failopen' "$NGINX_DIR/access.log")" 5 11 "streams that failed open"
    refute grep -q 'no live upstreams' "$NGINX_DIR/error.log"
}

@test "N24: Redis hangs: the first byte through nginx comes within 300 ms" {
    all_up DEFAULT_LIMIT=1 ACQUIRE_TIMEOUT=100ms
    stream u1
    kill -STOP "$REDIS_PID"
    fastest stream u1
    eq "$STATUS" 200
    grep -q '"slot":"failopen","reason":"timeout"' "$BODY"
    within "$TOOK" 90 300 "ms, of which 20 are the stream's"
    kill -CONT "$REDIS_PID"
    eventually 3 slots_are u1 0
    eventually 3 holds_a_slot u1
    open_stream one u1
    enforces u1
}

holds_a_slot() {
    stream "$1"
    grep -q '"slot":"held"' "$BODY"
}

@test "G03: the sidecar restarts three times under load: no client sees anything but its stream" {
    all_up DEFAULT_LIMIT=-1
    load() {
        local n=0
        while [[ ! -e $DIR/stop ]]; do
            n=$((n + 1))
            curl -s -m 10 -o /dev/null -w '%{http_code}\n' -H "Authorization: Bearer u$n" "$NG/stream/x?for=10ms"
        done
    }
    local i loads=()
    for i in 1 2; do
        load >"$DIR/statuses$i" 3>&- 4>&- &
        PIDS+=("$!")
        loads+=("$!")
    done
    for i in 1 2 3; do
        end TERM "$STREAMCAP_PID"
        start_streamcap_again
        local seen
        seen=$(cat "$DIR"/statuses? | wc -l)
        eventually 10 more_lines_than "$seen" "$DIR"/statuses?
    done
    touch "$DIR/stop"
    eventually 10 ended "${loads[0]}"
    eventually 10 ended "${loads[1]}"
    cat "$DIR"/statuses? >"$DIR/statuses"
    under 20 "$(wc -l <"$DIR/statuses")" "20, against the streams that were started"
    eq "$(sort -u "$DIR/statuses")" 200 "statuses that clients saw"
}

more_lines_than() {
    local n=$1
    shift
    (($(cat "$@" | wc -l) > n + 5))
}
