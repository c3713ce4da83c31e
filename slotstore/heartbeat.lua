-- For each user: extends the live ones of some slots; never shortens one, never takes one.
-- KEYS    for each user: slots    sorted set: request id -> expiry in ms of Redis's clock
--                        details  hash: request id -> "started_ms\nlimit\nattempt\n…"
-- ARGV    slot_ttl_ms, max_age_ms (0: none), then for each user: how many request ids, request id, ...
-- Returns for each user {1 extended, 0 not held, -1 past the maximum age and removed; ...},
--         or the error that her keys met
local call = redis.call
local slot_ttl_ms, max_age_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- As text: Redis would write these numbers like any fraction, for each command anew.
local extended_ms = now_ms + slot_ttl_ms
local extended, key_ttl = string.format('%d', extended_ms), string.format('%d', 2 * slot_ttl_ms)

local function extend(slots, details, id)
  local expiry_ms = tonumber(call('ZSCORE', slots, id) or 0)
  if expiry_ms <= now_ms then return 0 end
  -- What grows needs no look at the details: undo takes a slot only with the expiry that it was granted.
  if expiry_ms < extended_ms and max_age_ms == 0 then
    call('ZADD', slots, extended, id)
    return 1
  end
  local detail = call('HGET', details, id) or ''
  local started_ms, limit, attempt, provenance = string.match(detail, '^(%d+)\n(%-?%d+)\n(%w*)\n(.*)$')
  if max_age_ms > 0 and started_ms and now_ms - started_ms > max_age_ms then
    call('HDEL', details, id)
    call('ZREM', slots, id)
    return -1
  end
  if expiry_ms < extended_ms then
    call('ZADD', slots, extended, id)
  elseif started_ms and attempt ~= '' then -- a stream that lives is not to be undone
    call('HSET', details, id, started_ms .. '\n' .. limit .. '\n\n' .. provenance)
  end
  return 1
end

local function heartbeat(slots, details, first, last)
  local answers, any = {}, false
  for i = first, last do
    local answer = extend(slots, details, ARGV[i])
    answers[#answers + 1], any = answer, any or answer == 1
  end
  if any and call('PTTL', slots) < 2 * slot_ttl_ms then
    call('PEXPIRE', slots, key_ttl)
    call('PEXPIRE', details, key_ttl)
  end
  return answers
end

local replies, arg = {}, 3
for key = 1, #KEYS, 2 do
  local last = arg + tonumber(ARGV[arg])
  local ok, reply = pcall(heartbeat, KEYS[key], KEYS[key + 1], arg + 1, last)
  replies[#replies + 1] = (ok or type(reply) == 'table') and reply or {err = reply}
  arg = last + 1
end
return replies
