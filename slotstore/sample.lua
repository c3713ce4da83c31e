-- Counts a user's live slots. Writes nothing.
-- KEYS[1] slots    sorted set: request id -> expiry in ms of Redis's clock
-- KEYS[2] details  hash: request id -> "started_ms\n…"
-- Returns {live slots, ms since the oldest of the first 100 to expire was granted}
local slots, details = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local after_now = string.format('(%.0f', now_ms)
local oldest_ms = 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', slots, after_now, '+inf', 'LIMIT', 0, 100)) do
  local started_ms = tonumber(string.match(redis.call('HGET', details, id) or '', '^(%d+)\n')) or now_ms
  oldest_ms = math.max(oldest_ms, now_ms - started_ms)
end
return {redis.call('ZCOUNT', slots, after_now, '+inf'), oldest_ms}
