-- Lists a user's live slots, earliest expiry first, at most 1,000. Writes nothing.
-- KEYS[1] slots    sorted set: request id -> expiry in ms of Redis's clock
-- KEYS[2] details  hash: request id -> "started_ms\nlimit\nattempt\nip\nuri\nuser agent"
-- Returns {{request id, ms until it expires, ms since it was granted, detail}, ...}; where the detail is lost, it is ''
-- and the age 0
local slots, details = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local after_now = string.format('(%.0f', now_ms)
local live = redis.call('ZRANGEBYSCORE', slots, after_now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
local listed = {}
for i = 1, #live, 2 do
  local detail = redis.call('HGET', details, live[i]) or ''
  local started_ms = tonumber(string.match(detail, '^(%d+)\n')) or now_ms
  listed[#listed + 1] = {live[i], tonumber(live[i + 1]) - now_ms, math.max(0, now_ms - started_ms), detail}
end
return listed
