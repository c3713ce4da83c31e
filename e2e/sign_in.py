"""A sign-in service as nginx-two-hop.conf.example asks one: /oauth2/auth says 202 with the user's name
for "Authorization: Bearer NAME", else 401. Prints where it listens, then one line a question."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SignIn(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.headers.get("Authorization", "").removeprefix("Bearer ")
        known = self.path == "/oauth2/auth" and name.isidentifier()
        print("asked", name, flush=True)
        self.send_response(202 if known else 401)
        if known:
            self.send_header("X-Auth-Request-User", name)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), SignIn)
print("listening 127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
