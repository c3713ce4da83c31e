-- Gives a user's slots back, or undoes one acquire. A release writes even where nothing is held, so that a store
-- that refuses writes says so.
-- KEYS[1] slots    sorted set: request id -> expiry in ms of Redis's clock
-- KEYS[2] details  hash: request id -> "started_ms\nlimit\nattempt\n…"
-- ARGV    attempt ('': release; else remove only what this attempt took), request id, request id, ...
-- Returns {answer, answer, ...}: 1 removed while live, 0 not there (or not this attempt's), -1 removed after its expiry
local slots, details = KEYS[1], KEYS[2]
local attempt = ARGV[1]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local answers = {}
for i = 2, #ARGV do
  local id, answer = ARGV[i], 0
  local detail = attempt ~= '' and redis.call('HGET', details, id) or ''
  if attempt == '' or string.match(detail, '^%d+\n%-?%d+\n(%w*)\n') == attempt then
    local expiry_ms = tonumber(redis.call('ZSCORE', slots, id) or 0)
    if redis.call('ZREM', slots, id) == 1 then answer = expiry_ms > now_ms and 1 or -1 end
    redis.call('HDEL', details, id)
  end
  answers[#answers + 1] = answer
end
return answers
