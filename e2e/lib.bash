# What the test files share: real processes, started on free ports in the test's own directory and
# ended by their process id; polling with a deadline; exact statuses.
# shellcheck shell=bash

set -euo pipefail
export LC_ALL=C # EPOCHREALTIME then has a point

REPO=$(cd "${BATS_TEST_DIRNAME:-$(dirname "${BASH_SOURCE[0]}")}/.." && pwd)
STREAMCAP_BIN=${STREAMCAP_BIN:-$REPO/bin/streamcap}
BACKEND_BIN=${BACKEND_BIN:-$REPO/bin/backend}

setup() {
    DIR=$BATS_TEST_TMPDIR
    PIDS=()
    REDIS_SOCKET=
    SC_LOG_ADDRESS=127.0.0.1:9 # nobody listens on the discard port
    BACKENDS=()
    NGINX_SED=()
}

teardown() {
    local pid file
    # A stopped process takes no SIGTERM. nginx alone needs one, to take its workers along.
    for pid in "${PIDS[@]}"; do
        kill -CONT "$pid" 2>/dev/null || continue
        if [[ $(cat "/proc/$pid/comm" 2>/dev/null) == nginx ]]; then
            kill -TERM "$pid" 2>/dev/null || true
        else
            kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    wait 2>/dev/null || true
    if [[ -z ${BATS_TEST_COMPLETED:-} ]]; then
        for file in "$DIR"/*.err "$DIR"/nginx*/error.log "$DIR"/nginx*/access.log; do
            [[ -s $file ]] || continue
            echo "--- ${file##"$DIR"/}"
            tail -n 25 "$file"
        done
    fi
}

# --------------------------------------------------------------------------- saying what must be so

fail() {
    echo "$*" >&2
    return 1
}

# eq ACTUAL EXPECTED [what it is]
eq() {
    [[ $1 == "$2" ]] || fail "${3:-value}: got '$1', want '$2'"
}

# under ACTUAL BOUND [what it is]: whole numbers.
under() {
    (($1 < $2)) || fail "${3:-value}: got $1, want less than $2"
}

# within ACTUAL LOW HIGH [what it is]: whole numbers, the ends included.
within() {
    (($1 >= $2 && $1 <= $3)) || fail "${4:-value}: got $1, want $2 to $3"
}

# refute command...: the command must fail. (A line that begins with ! fails no test.)
refute() {
    ! "$@" || fail "must not be so: $*"
}

now_ms() {
    local t=${EPOCHREALTIME/./}
    echo $((t / 1000))
}

# eventually SECONDS command...: polls until the command succeeds.
eventually() {
    local deadline=$(($(now_ms) + ${1%.*} * 1000)) seconds=$1
    shift
    until "$@" >/dev/null 2>&1; do
        (($(now_ms) < deadline)) || fail "still not so after ${seconds} s: $*" || {
            "$@" || true
            return 1
        }
        sleep 0.02
    done
}

# always MILLISECONDS command...: the command succeeds for that long.
always() {
    local deadline=$(($(now_ms) + $1))
    shift
    while (($(now_ms) < deadline)); do
        "$@" || fail "no longer so: $*" || return 1
        sleep 0.02
    done
}

# --------------------------------------------------------------------------- processes

# launch NAME command...: in the background, output in $DIR/NAME.out and .err, its pid in LAUNCHED.
launch() {
    local name=$1
    shift
    "$@" >"$DIR/$name.out" 2>"$DIR/$name.err" 3>&- 4>&- </dev/null &
    LAUNCHED=$!
    PIDS+=("$LAUNCHED")
}

ended() { ! kill -0 "$1" 2>/dev/null; }

# end SIGNAL PID...: sends it and waits until the processes are gone.
end() {
    local signal=$1 pid
    shift
    kill "-$signal" "$@"
    for pid in "$@"; do
        eventually 10 ended "$pid"
        wait "$pid" 2>/dev/null || true
    done
}

# exit_status PID SECONDS: waits for a process of ours, its exit status in STATUS.
exit_status() {
    eventually "$2" ended "$1"
    STATUS=0
    wait "$1" 2>/dev/null || STATUS=$?
}

# A port that nobody listens on, below those that the kernel hands out by itself.
free_port() {
    local port
    while :; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# --------------------------------------------------------------------------- Redis

# start_redis [redis-server options...]; REDIS_PRELOAD moves its clock (slotstore/redistest/shim).
start_redis() {
    REDIS_SOCKET=$DIR/redis.sock
    launch redis env ${REDIS_PRELOAD:+LD_PRELOAD="$REDIS_PRELOAD"} \
        redis-server --port 0 --unixsocket "$REDIS_SOCKET" --dir "$DIR" --save '' --appendonly no \
        --daemonize no "$@"
    REDIS_PID=$LAUNCHED
    eventually 5 redis PING
}

redis() { redis-cli -s "$REDIS_SOCKET" "$@"; }

slots_key() { echo "streamcap:{$1}:slots"; }

# slots USER: how many members the user's sorted set has.
slots() { redis ZCARD "$(slots_key "$1")"; }

slots_are() { [[ $(slots "$1") == "$2" ]]; }

# expiry USER ID: when the slot dies, in ms by Redis's clock.
expiry() { redis ZSCORE "$(slots_key "$1")" "$2" | sed 's/\..*//'; }

# All keys of users: without the sample and the probe key of the self-test.
keys() { redis --scan --pattern 'streamcap:*' | grep -v -e '^streamcap:sample$' -e '^streamcap:{%probe}:' || true; }

no_keys() { [[ -z $(keys) ]]; }

# --------------------------------------------------------------------------- streamcap

# start_streamcap [NAME=value...]: names without STREAMCAP_; on free ports, with the test's Redis
# where one runs, and with budgets for a machine that is busy with other tests. Sets SC (base URL), SC_ADDRESS, SC_ADMIN, SC_LOG_ADDRESS, STREAMCAP_PID, STREAMCAP_LOG.
start_streamcap() {
    STREAMCAP_SETTINGS=("$@")
    STREAMCAP_STARTS=$((${STREAMCAP_STARTS:-0} + 1))
    local name=streamcap$STREAMCAP_STARTS
    launch "$name" env -i PATH="$PATH" HOME="$DIR" \
        STREAMCAP_LISTEN=127.0.0.1:0 STREAMCAP_ADMIN_LISTEN=127.0.0.1:0 \
        STREAMCAP_NGINX_LOG_LISTEN=127.0.0.1:0 \
        STREAMCAP_ACQUIRE_TIMEOUT=250ms STREAMCAP_HEARTBEAT_TIMEOUT=1s STREAMCAP_RELEASE_TIMEOUT=1s \
        ${REDIS_SOCKET:+STREAMCAP_REDIS_URL="unix://$REDIS_SOCKET"} \
        "${@/#/STREAMCAP_}" "$STREAMCAP_BIN"
    STREAMCAP_PID=$LAUNCHED
    STREAMCAP_LOG=$DIR/$name.err
    eventually 5 log_has started
    SC_ADDRESS=$(log_events started | jq -r .listen)
    SC_ADMIN=http://$(log_events started | jq -r .admin_listen)
    SC_LOG_ADDRESS=$(log_events started | jq -r '.nginx_log_listen // "127.0.0.1:9"')
    SC=http://$SC_ADDRESS
}

# start_streamcap_again: with the settings and on the addresses that it had.
start_streamcap_again() {
    start_streamcap "${STREAMCAP_SETTINGS[@]}" "LISTEN=$SC_ADDRESS" \
        "ADMIN_LISTEN=${SC_ADMIN#http://}" "NGINX_LOG_LISTEN=$SC_LOG_ADDRESS" "$@"
}

log_events() { jq -cR "fromjson? | select(.event == \"$1\")" "$STREAMCAP_LOG"; }

log_has() { [[ -n $(log_events "$1") ]]; }

# streamcap COMMAND [NAME=value...]: runs one command to its end; STATUS, output in $DIR/command.out and .err.
streamcap() {
    local command=$1
    shift
    STATUS=0
    timeout 20 env -i PATH="$PATH" HOME="$DIR" "${@/#/STREAMCAP_}" "$STREAMCAP_BIN" ${command:+"$command"} \
        >"$DIR/command.out" 2>"$DIR/command.err" || STATUS=$?
}

# --------------------------------------------------------------------------- the demo backends

# start_backend [go|node|python] [NAME=value...]: names without BACKEND_. Sets BACKEND_PID, BACKEND_ADDRESS
# and adds the address to BACKENDS, which start_nginx reads.
start_backend() {
    local command=("$BACKEND_BIN") name
    case ${1:-} in
    go) shift ;;
    node) command=(node "$REPO/e2e/backend/node/backend.js") && shift ;;
    python) command=(python3 "$REPO/e2e/backend/python/backend.py") && shift ;;
    esac
    BACKEND_STARTS=$((${BACKEND_STARTS:-0} + 1))
    name=backend$BACKEND_STARTS
    launch "$name" env -i PATH="$PATH" HOME="$DIR" BACKEND_LISTEN=127.0.0.1:0 \
        BACKEND_STREAMCAP="${SC:-}" BACKEND_HEARTBEAT=300ms "${@/#/BACKEND_}" "${command[@]}"
    BACKEND_PID=$LAUNCHED
    eventually 10 grep -q '^listening ' "$DIR/$name.out"
    BACKEND_ADDRESS=$(sed -n 's/^listening //p' "$DIR/$name.out")
    BACKENDS+=("$BACKEND_ADDRESS")
}

# --------------------------------------------------------------------------- nginx

# write_nginx_conf FILE PORT: the shipped file with nothing but ports and paths replaced, and then
# what the test itself changes (NGINX_SED), into $NGINX_DIR.
write_nginx_conf() {
    local file=$1 port=$2 servers='' address edits=() edit
    for address in "${BACKENDS[@]}"; do
        servers+="server $address max_fails=0; "
    done
    for edit in "${NGINX_SED[@]}"; do
        edits+=(-e "$edit")
    done
    sed -e "s#/run/nginx.pid#$NGINX_DIR/nginx.pid#" \
        -e "s#/var/log/nginx/#$NGINX_DIR/#" \
        -e "s#/etc/nginx/streamcap/#$NGINX_DIR/#" \
        -e "s#listen 8080;#listen 127.0.0.1:$port;#" \
        -e "s#127.0.0.1:8081#unix:$NGINX_DIR/gate.sock#" \
        -e "s#127.0.0.1:9180#${SC_ADDRESS:-127.0.0.1:9}#" \
        -e "s#127.0.0.1:9514#$SC_LOG_ADDRESS#" \
        -e "s#127.0.0.1:4180#${SIGN_IN_ADDRESS:-127.0.0.1:9}#" \
        -e "s#server 127.0.0.1:9000 max_fails=0;#${servers:-server 127.0.0.1:9;}#" \
        -e "s#^http {#http { client_body_temp_path $NGINX_DIR/body; proxy_temp_path $NGINX_DIR/proxy; fastcgi_temp_path $NGINX_DIR/fastcgi; uwsgi_temp_path $NGINX_DIR/uwsgi; scgi_temp_path $NGINX_DIR/scgi;#" \
        "$REPO/$file" | sed "${edits[@]}" -e '' >"$NGINX_DIR/nginx.conf"
    if grep -nE '^[^#]*(\b(8080|8081|8443|9180|9514|4180|9000)\b|/var/|/etc/|/run/)' "$NGINX_DIR/nginx.conf"; then
        fail "a port or path of $file was not replaced"
    fi
}

# start_nginx [FILE]: in front of SC_ADDRESS and BACKENDS. "Authorization: Bearer NAME" is user NAME;
# users called paid-... have the plan paid. Sets NG (base URL), NGINX_PID, NGINX_DIR.
start_nginx() {
    local file=${1:-nginx.conf.example} port
    NGINX_DIR=$DIR/nginx
    mkdir -p "$NGINX_DIR"
    echo '"~^Bearer\ (?<key_user>[a-z0-9-]+)$" $key_user;' >"$NGINX_DIR/keys-test.map"
    echo '"~^paid-" paid;' >"$NGINX_DIR/plans-test.map"
    while :; do
        port=$(free_port)
        write_nginx_conf "$file" "$port"
        launch nginx nginx -c "$NGINX_DIR/nginx.conf" -g "daemon off;$([[ $EUID != 0 ]] || echo ' user root;')"
        NGINX_PID=$LAUNCHED
        NG=http://127.0.0.1:$port
        eventually 5 nginx_is_up_or_failed
        ended "$NGINX_PID" || ! grep -q 'Address already in use' "$DIR/nginx.err" "$NGINX_DIR/error.log" || end KILL "$NGINX_PID"
        ended "$NGINX_PID" || return 0
        grep -q 'Address already in use' "$DIR/nginx.err" "$NGINX_DIR/error.log" ||
            fail "nginx does not start: $(cat "$DIR/nginx.err" "$NGINX_DIR/error.log")" || return 1
        rm -f "$NGINX_DIR/error.log"
    done
}

nginx_is_up_or_failed() {
    ended "$NGINX_PID" || grep -qs 'Address already in use' "$DIR/nginx.err" "$NGINX_DIR/error.log" ||
        [[ $(curl -s -o /dev/null -w '%{http_code}' "$NG/") == 404 ]]
}

# nginx_workers: the workers' pids, those that are shutting down included.
nginx_workers() { pgrep -P "$NGINX_PID"; }

# reload_nginx: returns when new workers serve.
reload_nginx() {
    local old
    old=$(nginx_workers)
    kill -HUP "$NGINX_PID"
    eventually 5 nginx_has_new_workers "$old"
}

nginx_has_new_workers() {
    local pid
    for pid in $(nginx_workers); do
        [[ $'\n'$1$'\n' == *$'\n'"$pid"$'\n'* ]] || return 0
    done
    return 1
}

# access_log_has TEXT: a line of the ordinary access log holds it.
access_log_has() { grep -qF -- "$1" "$NGINX_DIR/access.log"; }

# --------------------------------------------------------------------------- requests

# request [curl arguments...]: STATUS (000 where none came), HEAD and BODY (files), TOOK (ms).
request() {
    local seconds
    HEAD=$DIR/request.head BODY=$DIR/request.body
    rm -f "$HEAD" "$BODY"
    touch "$HEAD" "$BODY"
    read -r STATUS seconds < <(curl -sS -m 10 -o "$BODY" -D "$HEAD" -w '%{http_code} %{time_total}\n' "$@" 2>"$DIR/request.err" || true) || true
    TOOK=$((10#${seconds/./} / 1000))
}

# fastest command...: three times, TOOK the least of them, for a machine may be busy; STATUS is the same each time.
fastest() {
    local i least='' status=''
    for i in 1 2 3; do
        "$@"
        eq "$STATUS" "${status:-$STATUS}" "status of try $i" || return 1
        status=$STATUS
        [[ -n $least ]] && ((least < TOOK)) || least=$TOOK
    done
    TOOK=$least
}

# header NAME [FILE]: its value in the answer, nothing where it isn't there.
header() {
    sed -n "s/^$1: *//Ip" "${2:-$HEAD}" | tr -d '\r'
}

# acquire USER ID [curl arguments...]
acquire() {
    local user=$1 id=$2
    shift 2
    request -H "X-User-Id: $user" -H "X-Request-Id: $id" "$@" "$SC/acquire"
}

# heartbeat USER ID [curl arguments...] and release
heartbeat() {
    local user=$1 id=$2
    shift 2
    request -X POST -H "X-User-Id: $user" -H "X-Request-Id: $id" "$@" "$SC/heartbeat"
}

release() {
    local user=$1 id=$2
    shift 2
    request -X POST -H "X-User-Id: $user" -H "X-Request-Id: $id" "$@" "$SC/release"
}

# batch PATH JSON [curl arguments...]
batch() {
    local path=$1 json=$2
    shift 2
    request -H 'Content-Type: application/json' --data-binary "$json" "$@" "$SC$path"
}

# answer STATUS SLOT [REASON]: what the last acquire must have said.
answer() {
    eq "$STATUS" "$1" status
    eq "$(header X-Stream-Slot)" "$2" X-Stream-Slot
    eq "$(header X-Stream-Reason)" "${3:-}" X-Stream-Reason
}

# dies_at USER MS [how far Redis's clock is ahead, in s]: at the cap, new ids are denied until that moment
# of Redis's clock and not after it; ends with the first one that is let in.
dies_at() {
    local began ahead=$((${3:-0} * 1000)) n=0
    while
        began=$(now_ms)
        n=$((n + 1))
        acquire "$1" "after$n"
        [[ $STATUS == 403 ]]
    do
        under $((began + ahead)) "$2" "the time, with $1 still denied"
    done
    answer 204 held
    under "$2" $(($(now_ms) + ahead + 1)) "the slot's end, with another one granted"
}

# burst: reads lines "METHOD URL USER ID", sends up to 100 at a time, writes "STATUS USER ID" lines.
burst() {
    local method url user id first=yes
    while read -r method url user id; do
        [[ -n $first ]] || echo next
        first=
        printf 'url = "%s"\nrequest = "%s"\nheader = "X-User-Id: %s"\nheader = "X-Request-Id: %s"\n' \
            "$url" "$method" "$user" "$id"
        printf 'output = /dev/null\nmax-time = 10\nwrite-out = "%%{http_code} %s %s\\n"\n' "$user" "$id"
    done | curl -sS --no-progress-meter --parallel --parallel-immediate --parallel-max 100 -K -
}

# count TEXT FILE: lines that begin with it.
count() { grep -c "^$1" "$2" || true; }

# raw ADDRESS BYTES: sends the bytes (with \r, \n, \xff) as they are and keeps the connection open; STATUS
# and TOOK (ms) of the answer's first line, 000 where none comes within 2 s.
raw() {
    local line='' began connection
    exec {connection}<>"/dev/tcp/${1%:*}/${1##*:}"
    began=$(now_ms)
    # In one piece: who is refused at the first line closes before a second could be sent.
    printf '%b' "$2" >"$DIR/raw"
    cat "$DIR/raw" >&"$connection"
    IFS= read -r -t 2 line <&"$connection" || true
    TOOK=$(($(now_ms) - began))
    exec {connection}>&-
    STATUS=000
    [[ ! $line =~ ^HTTP/1\.[01]\ ([0-9]{3}) ]] || STATUS=${BASH_REMATCH[1]}
}

# --------------------------------------------------------------------------- streams through nginx

# stream USER [curl arguments...]: one short stream, to its end, as request does.
stream() {
    local user=$1
    shift
    request -H "Authorization: Bearer $user" "$@" "$NG/stream/short?for=20ms"
}

# open_stream NAME USER [curl arguments...]: a stream that runs on (or for QUERY='?for=2s'), its pid in
# STREAM_PID. Returns once its first event or a refusal has come.
open_stream() {
    begin_stream "$@"
    eventually 5 began_or_ended "$1" "$STREAM_PID"
}

# begin_stream: the same without the wait.
begin_stream() {
    local name=$1 user=$2
    shift 2
    launch "curl-$name" curl -sS -N -k -o "$DIR/$name.body" -D "$DIR/$name.head" \
        -H "Authorization: Bearer $user" "$@" "$NG/stream/$name${QUERY:-}"
    STREAM_PID=$LAUNCHED
}

began() { grep -qs '^data: {' "$DIR/$1.body"; }

began_or_ended() { began "$1" || ended "$2"; }

# first_event NAME FIELD: what the backend received, as it says in its first event.
first_event() { sed -n 's/^data: {/{/p' "$DIR/$1.body" | head -n 1 | jq -r ".$2"; }

# stream_status NAME: the status of the answer.
stream_status() { sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$DIR/$1.head" | tail -n 1 | tr -d '\r'; }
