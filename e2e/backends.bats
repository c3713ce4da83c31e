#!/usr/bin/env bats
# The demo backends in three languages: they keep their streams' slots alive, and give them back. Here
# nginx's end-of-request line goes nowhere, so that it is all their own doing.

load lib

# keeps_and_gives_back LANGUAGE
keeps_and_gives_back() {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=2s HEARTBEAT_INTERVAL=300ms BACKEND_TOKEN=secret
    SC_LOG_ADDRESS=127.0.0.1:9
    start_backend "$1" TOKEN=secret
    start_nginx
    QUERY='?every=200ms' open_stream leaves u1
    local leaves=$STREAM_PID
    QUERY='?every=200ms&for=5s' open_stream ends u1
    eq "$(first_event leaves user) $(first_event leaves slot)" 'u1 held'
    [[ $(first_event leaves id) =~ ^[0-9a-f]{32}$ ]]
    # Well past the TTL of a slot without heartbeats.
    always 2600 slots_alive u1 2
    eventually 3 grep -q '^data: 5$' "$DIR/leaves.body"
    # One is given back as its stream ends, one as its client leaves, long before their TTL.
    exit_status "$STREAM_PID" 5
    eq "$STATUS" 0 "exit status of the client whose stream ended"
    eventually 3 slots_are u1 1
    always 300 slots_alive u1 1
    end KILL "$leaves"
    eventually 3 slots_are u1 0

    # Uncounted streams are nobody's: no heartbeat is sent for them.
    request "$NG/stream/x?for=700ms"
    eq "$STATUS" 200
    refute grep -q 'slot that is not held' "$STREAMCAP_LOG"
    no_keys
}

# slots_alive USER N: members whose expiry is still to come.
slots_alive() { [[ $(redis ZCOUNT "$(slots_key "$1")" "$(now_ms)" +inf) == "$2" ]]; }

@test "R04: the Go backend heartbeats while a stream runs and releases when it ends" { keeps_and_gives_back go; }

@test "R04: the Node backend heartbeats while a stream runs and releases when it ends" { keeps_and_gives_back node; }

@test "R04: the Python backend heartbeats while a stream runs and releases when it ends" { keeps_and_gives_back python; }

# stops_gracefully LANGUAGE: as "docker stop" does it.
stops_gracefully() {
    start_redis
    start_streamcap DEFAULT_LIMIT=2 SLOT_TTL=60s
    SC_LOG_ADDRESS=127.0.0.1:9
    start_backend "$1"
    start_nginx
    open_stream one u1
    open_stream two u2
    eq "$(slots u1) $(slots u2)" '1 1'
    kill -TERM "$BACKEND_PID"
    eventually 3 slots_are u1 0
    eventually 3 slots_are u2 0
    # "docker stop" waits for ten seconds.
    exit_status "$BACKEND_PID" 9
    eq "$STATUS" 0 "exit status of the backend"
}

@test "R04: the Go backend gives its slots back as it is stopped" { stops_gracefully go; }

@test "R04: the Node backend gives its slots back as it is stopped" { stops_gracefully node; }

@test "R04: the Python backend gives its slots back as it is stopped" { stops_gracefully python; }

@test "A14: a WebSocket of the Go backend keeps its slot by heartbeats and gives it back" {
    start_redis
    start_streamcap DEFAULT_LIMIT=1 SLOT_TTL=2s HEARTBEAT_INTERVAL=300ms
    SC_LOG_ADDRESS=127.0.0.1:9
    start_backend
    start_nginx
    launch ws python3 "$BATS_TEST_DIRNAME/websocket.py" "$NG/ws/echo" u1 hello
    eventually 3 grep -q '^echo hello$' "$DIR/ws.out"
    always 2600 slots_alive u1 1
    end KILL "$LAUNCHED"
    eventually 3 slots_are u1 0
}
