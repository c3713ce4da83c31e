// A small streaming server that shows how a service keeps the slots of its streams: a heartbeat
// while a stream runs, a release when it ends. Lift keepSlot and its two helpers into your own
// service; the rest is the stream that they are shown on. Node 20 or newer, nothing to install.
"use strict";

const http = require("node:http");
const { setTimeout: sleep } = require("node:timers/promises");

const env = (name, fallback) => process.env[name] ?? fallback;
const streamcap = env("BACKEND_STREAMCAP", "http://127.0.0.1:9180"); // empty: tell nobody
const token = env("BACKEND_TOKEN", ""); // STREAMCAP_BACKEND_TOKEN, where streamcap asks for one
const release = env("BACKEND_RELEASE", "true") !== "false"; // false: nginx's line and the TTL do it
const interval = milliseconds(env("BACKEND_HEARTBEAT", "20s")); // a third of the TTL or less
if (!interval) throw new Error("BACKEND_HEARTBEAT is a duration, such as 20s");

// keepSlot heartbeats the slot that nginx took for this request until the answer is over, then
// gives it back. Without a held slot (streamcap failed open, or didn't count this request) there is
// nothing to keep.
async function keepSlot(req, res) {
  const slot = { "X-User-Id": req.headers["x-user-id"], "X-Request-Id": req.headers["x-request-id"] };
  if (!streamcap || req.headers["x-stream-slot"] !== "held") return;
  const ended = new AbortController();
  // 'close' comes once for every way a stream can end: finished, client gone, we are stopping.
  res.once("close", () => ended.abort());
  await heartbeats(slot, ended.signal);
  if (!release) return;
  // No retry: a release that gets lost costs the user a wait for the TTL, no more.
  await post("/release", slot).catch((err) => console.error("backend: release:", err.message));
}

// heartbeats sends one at once, since a fresh slot may be leased for less than the TTL
// (STREAMCAP_INITIAL_TTL), and then one each interval. One timer a stream is fine for thousands of
// streams; for more, a process can keep them in a set and send one batch: {"slots":[{"user":…,"id":…}]}.
async function heartbeats(slot, ended) {
  for (let gone = false; !ended.aborted; ) {
    try {
      const status = await post("/heartbeat", slot);
      if (status === 410 && !gone) {
        // Someone released it, the store lost it, or it grew too old. No heartbeat brings it back;
        // the stream goes on uncounted. End the stream here only if you mean to.
        console.error("backend: heartbeat: the slot is no longer held:", slot);
        gone = true;
      } else if (![204, 202, 410].includes(status)) {
        // 204: kept. 202: not recorded, the store is away, which is no reason to end a stream.
        console.error("backend: heartbeat: unexpected status", status);
      }
    } catch (err) {
      console.error("backend: heartbeat:", err.message); // the next one makes up for it: the TTL allows two to fail
    }
    await sleep(interval, null, { signal: ended }).catch(() => {}); // woken early: the stream is over
  }
}

// post names one slot to streamcap and returns the status of its answer.
async function post(path, slot) {
  const headers = token ? { ...slot, Authorization: `Bearer ${token}` } : slot;
  const answer = await fetch(streamcap + path, { method: "POST", headers, signal: AbortSignal.timeout(2000) });
  await answer.body?.cancel(); // nothing in it is needed
  return answer.status;
}

// stream sends server-sent events: what nginx said about the slot, then a number every ?every=
// (default 1s) for ?for= (default: until the client leaves).
function stream(req, res) {
  const query = new URL(req.url, "http://backend").searchParams;
  const every = milliseconds(query.get("every") ?? "1s");
  const length = query.has("for") ? milliseconds(query.get("for")) : Infinity;
  if (!every || !length) {
    return res.writeHead(400).end("every and for are durations, such as 500ms or 10s\n");
  }
  req.resume(); // an unread body hides that the client has left
  res.writeHead(200, {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no", // nginx hands on each event as it comes
  });
  if (req.method === "HEAD") return res.end();
  const send = (event) => res.write(`data: ${event}\n\n`);
  const header = (name) => req.headers[name] ?? "";
  send(JSON.stringify({
    user: header("x-user-id"),
    id: header("x-request-id"),
    slot: header("x-stream-slot"),
    reason: header("x-stream-reason"),
  }));
  let n = 0;
  const ticker = setInterval(() => send(++n), every);
  const end = length < Infinity ? setTimeout(() => res.end(), length) : undefined;
  running.add(res);
  res.once("close", () => {
    clearInterval(ticker);
    clearTimeout(end);
    running.delete(res);
  });
}

// milliseconds reads "300ms" or "1.5s"; 0 for anything else.
function milliseconds(text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(ms|s)$/.exec(text) ?? [];
  return number ? number * (unit === "s" ? 1000 : 1) : 0;
}

const running = new Set(); // the answers that still stream
const server = http.createServer((req, res) => {
  if (!req.url.startsWith("/stream/")) return res.end("ok\n");
  keepSlot(req, res);
  stream(req, res);
});

const listen = env("BACKEND_LISTEN", "127.0.0.1:9000");
const colon = listen.lastIndexOf(":");
server.listen({ host: listen.slice(0, colon), port: Number(listen.slice(colon + 1)) }, () => {
  const { address, port } = server.address();
  console.log(`listening ${address}:${port}`);
});

// A stop ends the streams; the process is over once each has released its slot. A second signal
// ends it at once.
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => {
    server.close();
    for (const res of running) res.end();
    setInterval(() => server.closeIdleConnections(), 100).unref(); // nginx keeps them open
  });
}
