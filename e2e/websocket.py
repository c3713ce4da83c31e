"""A WebSocket client: opens the URL, sends a text, prints the echo, and holds the connection until it
is killed or the server closes it. Prints "refused STATUS" and exits 1 where the handshake is refused."""

import base64
import os
import socket
import sys
from urllib.parse import urlsplit


def read_exactly(sock, size):
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


def main():
    url, user, text = urlsplit(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
    sock = socket.create_connection((url.hostname, url.port), timeout=10)
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET {url.path} HTTP/1.1\r\nHost: {url.hostname}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        f"Authorization: Bearer {user}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read_exactly(sock, 1)
    status = head.split()[1].decode()
    if status != "101":
        print("refused", status, flush=True)
        sys.exit(1)

    mask = os.urandom(4)
    masked = bytes(b ^ mask[i % 4] for i, b in enumerate(text))
    sock.sendall(bytes([0x81, 0x80 | len(text)]) + mask + masked)
    sock.settimeout(None)
    while True:
        size = read_exactly(sock, 2)[1] & 0x7F
        print("echo", read_exactly(sock, size).decode(), flush=True)


main()
