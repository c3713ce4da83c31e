-- Extends the live ones of a user's slots; never shortens one, never takes one.
-- KEYS[1] slots    sorted set: request id -> expiry in ms of Redis's clock
-- KEYS[2] details  hash: request id -> "started_ms\nlimit\nattempt\n…"
-- ARGV    slot_ttl_ms, max_age_ms (0: none), request id, request id, ...
-- Returns {answer, answer, ...}: 1 extended, 0 not held, -1 past the maximum age and removed
local slots, details = KEYS[1], KEYS[2]
local slot_ttl_ms, max_age_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local answers, extended = {}, false
for i = 3, #ARGV do
  local id, answer = ARGV[i], 0
  local expiry_ms = tonumber(redis.call('ZSCORE', slots, id) or 0)
  if expiry_ms > now_ms then
    local detail = redis.call('HGET', details, id) or ''
    local started_ms, limit, attempt, provenance = string.match(detail, '^(%d+)\n(%-?%d+)\n(%w*)\n(.*)$')
    if max_age_ms > 0 and started_ms and now_ms - started_ms > max_age_ms then
      redis.call('ZREM', slots, id)
      redis.call('HDEL', details, id)
      answer = -1
    else
      if expiry_ms < now_ms + slot_ttl_ms then redis.call('ZADD', slots, now_ms + slot_ttl_ms, id) end
      if started_ms and attempt ~= '' then -- a stream that lives is not to be undone
        redis.call('HSET', details, id, started_ms .. '\n' .. limit .. '\n\n' .. provenance)
      end
      answer, extended = 1, true
    end
  end
  answers[#answers + 1] = answer
end

if extended then
  for _, key in ipairs(KEYS) do
    if redis.call('PTTL', key) < 2 * slot_ttl_ms then redis.call('PEXPIRE', key, 2 * slot_ttl_ms) end
  end
end
return answers
