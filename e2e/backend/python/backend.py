#!/usr/bin/python3
"""A small streaming server that shows how a service keeps the slots of its streams: a heartbeat
while a stream runs, a release when it ends. Lift kept, heartbeats and post into your own service;
the rest is the stream that they are shown on. Python 3.11 or newer, nothing to install."""

import contextlib
import http.client
import http.server
import json
import os
import re
import select
import signal
import sys
import threading
import time
import urllib.parse


def seconds(text):
    """Reads "300ms" or "1.5s"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text)
    if not match or not float(match[1]):
        raise ValueError(f"a duration, such as 500ms or 10s, not {text!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


STREAMCAP = urllib.parse.urlsplit(os.environ.get("BACKEND_STREAMCAP", "http://127.0.0.1:9180")).netloc  # empty: tell nobody
TOKEN = os.environ.get("BACKEND_TOKEN", "")  # STREAMCAP_BACKEND_TOKEN, where streamcap asks for one
RELEASE = os.environ.get("BACKEND_RELEASE", "true") != "false"  # false: nginx's line and the TTL do it
INTERVAL = seconds(os.environ.get("BACKEND_HEARTBEAT", "20s"))  # a third of the TTL or less
FAILED = (OSError, http.client.HTTPException)  # how a call to streamcap can fail


@contextlib.contextmanager
def kept(slot, user, request_id):
    """Heartbeats the slot that nginx took for this request while the with block runs, then gives it
    back. Without a held slot (streamcap failed open, or didn't count this request) there is nothing
    to keep."""
    if not STREAMCAP or slot != "held":
        yield
        return
    ended = threading.Event()
    beating = threading.Thread(target=heartbeats, args=(user, request_id, ended))
    beating.start()
    try:
        yield
    finally:  # however the stream ended
        ended.set()
        beating.join()
        if RELEASE:
            # No retry: a release that gets lost costs the user a wait for the TTL, no more.
            try:
                post("/release", user, request_id)
            except FAILED as err:
                log(f"release: {err}")


def heartbeats(user, request_id, ended):
    """Sends one at once, since a fresh slot may be leased for less than the TTL
    (STREAMCAP_INITIAL_TTL), and then one each interval. One thread a stream is fine for hundreds of
    streams; for more, a process can keep them in a set and send one batch:
    {"slots":[{"user":…,"id":…}]}."""
    gone = False
    while True:
        try:
            status = post("/heartbeat", user, request_id)
            if status == 410 and not gone:
                # Someone released it, the store lost it, or it grew too old. No heartbeat brings it
                # back; the stream goes on uncounted. End the stream here only if you mean to.
                log(f"heartbeat: user {user!r} no longer holds a slot for request {request_id!r}")
                gone = True
            elif status not in (204, 202, 410):
                # 204: kept. 202: not recorded, the store is away, which is no reason to end a stream.
                log(f"heartbeat: unexpected status {status}")
        except FAILED as err:
            log(f"heartbeat: {err}")  # the next one makes up for it: the TTL allows two to fail
        if ended.wait(INTERVAL):
            return


def post(path, user, request_id):
    """Names one slot to streamcap and returns the status of its answer."""
    headers = {"X-User-Id": user, "X-Request-Id": request_id}
    if TOKEN:
        headers["Authorization"] = f"Bearer {TOKEN}"
    connection = http.client.HTTPConnection(STREAMCAP, timeout=2)  # one a call: no thread shares it
    try:
        connection.request("POST", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def log(message):
    """Writes one line to stderr."""
    print(f"backend: {message}", file=sys.stderr, flush=True)


# Becomes readable for every stream at once when the process is told to stop.
stopping, stop = os.pipe()


class Backend(http.server.BaseHTTPRequestHandler):
    """Any path under /stream/ is a stream of server-sent events, everything else says ok."""

    def answer(self):
        path, _, query = self.path.partition("?")
        if not path.startswith("/stream/"):
            self.reply(200, "text/plain")
            self.wfile.write(b"ok\n")
            return
        try:
            options = dict(urllib.parse.parse_qsl(query))
            every = seconds(options.get("every", "1s"))
            length = seconds(options["for"]) if "for" in options else float("inf")
        except ValueError as err:
            self.reply(400, "text/plain")
            self.wfile.write(f"every and for are durations: {err}\n".encode())
            return
        slot = {name: self.headers.get(header, "") for name, header in
                (("user", "X-User-Id"), ("id", "X-Request-Id"), ("slot", "X-Stream-Slot"), ("reason", "X-Stream-Reason"))}
        with kept(slot["slot"], slot["user"], slot["id"]), contextlib.suppress(OSError):  # OSError: the client left
            self.stream(slot, every, length)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def stream(self, slot, every, length):
        """Sends what nginx said about the slot, then a number every so often, until the stream is
        over or the client leaves."""
        self.reply(200, "text/event-stream")
        if self.command == "HEAD":
            return
        self.send(json.dumps(slot, separators=(",", ":")))
        end = time.monotonic() + length
        n = 0
        while self.wait(min(every, end - time.monotonic())) and time.monotonic() < end:
            n += 1
            self.send(n)

    def wait(self, duration):
        """Waits, and returns False as soon as the client leaves or the process is told to stop."""
        events = select.poll()
        events.register(self.connection, select.POLLIN)
        events.register(stopping, select.POLLIN)
        until = time.monotonic() + duration
        while (left := until - time.monotonic()) > 0:
            ready = dict(events.poll(left * 1000))
            if stopping in ready:
                return False
            # What comes is a body, which nobody needs; nothing means that the client has left.
            if ready and not self.connection.recv(65536):
                return False
        return True

    def send(self, event):
        """Sends one event."""
        self.wfile.write(f"data: {event}\n\n".encode())

    def reply(self, status, content_type):
        """Sends the head of the answer. Its end is the end of the connection: HTTP/1.0."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Accel-Buffering", "no")  # nginx hands on each event as it comes
        self.end_headers()

    def log_message(self, *_):
        """Says nothing: nginx keeps the access log."""


class Server(http.server.ThreadingHTTPServer):
    """Waits for its streams when it is closed, so that each releases its slot."""

    daemon_threads = False
    request_queue_size = 128  # the default of 5 makes clients that come together wait a second


def told_to_stop(*_):
    """Leaves serve_forever; a second signal ends the process at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(0)


def main():
    host, _, port = os.environ.get("BACKEND_LISTEN", "127.0.0.1:9000").rpartition(":")
    server = Server((host, int(port)), Backend)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told_to_stop)
    print("listening {}:{}".format(*server.server_address[:2]), flush=True)
    try:
        server.serve_forever()
    finally:
        os.close(stop)
        server.server_close()


if __name__ == "__main__":
    main()
