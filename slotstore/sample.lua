-- For each user: counts her live slots. Writes nothing.
-- KEYS    for each user: slots    sorted set: request id -> expiry in ms of Redis's clock
--                        details  hash: request id -> "started_ms\n…"
-- Returns for each user {live slots, ms since the oldest of the first 100 to expire was granted}, or the error that her
--         keys met
local call = redis.call

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local after_now = string.format('(%.0f', now_ms)

local function sample(slots, details)
  local live = call('ZRANGEBYSCORE', slots, after_now, '+inf', 'LIMIT', 0, 100)
  local oldest_ms = 0
  for _, id in ipairs(live) do
    local started_ms = tonumber(string.match(call('HGET', details, id) or '', '^(%d+)\n')) or now_ms
    oldest_ms = math.max(oldest_ms, now_ms - started_ms)
  end
  return {#live < 100 and #live or call('ZCOUNT', slots, after_now, '+inf'), oldest_ms}
end

local replies = {}
for key = 1, #KEYS, 2 do
  local ok, reply = pcall(sample, KEYS[key], KEYS[key + 1])
  replies[#replies + 1] = (ok or type(reply) == 'table') and reply or {err = reply}
end
return replies
