-- For each user: takes a slot, renews the one that this request id holds, or denies and changes nothing but the prune.
-- KEYS    for each user: slots    sorted set: request id -> expiry in ms of Redis's clock
--                        details  hash: request id -> "started_ms\nlimit\nattempt\nip\nuri\nuser agent"
-- ARGV    initial_ttl_ms, slot_ttl_ms, then for each user: request id, limit (-1: unlimited), attempt, provenance
-- Returns for each user {outcome (0 denied, 1 granted, 2 renewed), used, ms to the earliest expiry, pruned, holder, …},
--         or the error that her keys met
local call = redis.call
local initial_ttl_ms, slot_ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function prune(slots, details)
  local pruned = 0
  repeat -- in steps, because unpack takes some thousands at the most
    local dead = call('ZRANGEBYSCORE', slots, '-inf', now_ms, 'LIMIT', 0, 1000)
    if #dead > 0 then
      call('HDEL', details, unpack(dead))
      call('ZREM', slots, unpack(dead))
      pruned = pruned + #dead
    end
  until #dead < 1000
  return pruned
end

local function acquire(slots, details, id, limit, attempt, provenance)
  local used, pruned, held_ms = call('ZCARD', slots), 0, false
  if used > 0 then
    pruned = prune(slots, details)
    used, held_ms = used - pruned, call('ZSCORE', slots, id)
  end
  local expiry_ms, started_ms, outcome = now_ms + initial_ttl_ms, now_ms, 1
  if held_ms then
    local detail = call('HGET', details, id) or ''
    local held_started_ms, held_attempt = string.match(detail, '^(%d+)\n%-?%d+\n(%w*)\n')
    started_ms = tonumber(held_started_ms) or now_ms
    if held_attempt == attempt then -- sent again by the driver: undo knows it by the expiry that it was granted
      expiry_ms = tonumber(held_ms)
    else
      outcome, attempt, expiry_ms = 2, '', math.max(expiry_ms, tonumber(held_ms))
    end
  elseif limit < 0 or used < limit then
    used = used + 1
  else
    local first = call('ZRANGE', slots, 0, 0, 'WITHSCORES')
    local earliest_ms = first[2] and tonumber(first[2]) - now_ms or 0
    return {0, used, earliest_ms, pruned, unpack(call('ZRANGE', slots, 0, 19))}
  end

  local fresh = used == 1 and not held_ms
  if fresh and call('HLEN', details) > 0 then call('DEL', details) end -- an evicted set's leftovers
  -- The details first: where they are somebody else's key, nothing has changed.
  call('HSET', details, id, string.format('%d\n%d\n%s\n%s', started_ms, limit, attempt, provenance))
  -- As text: Redis would write these numbers like any fraction, which costs it more than all else about them.
  call('ZADD', slots, string.format('%d', expiry_ms), id)
  local key_ttl_ms = expiry_ms - now_ms + slot_ttl_ms
  local key_ttl = string.format('%d', key_ttl_ms)
  for _, key in ipairs({slots, details}) do
    if fresh or call('PTTL', key) < key_ttl_ms then call('PEXPIRE', key, key_ttl) end
  end
  return {outcome, used, 0, pruned}
end

local replies, arg = {}, 3
for key = 1, #KEYS, 2 do
  local id, limit, attempt, provenance = ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2], ARGV[arg + 3]
  local ok, reply = pcall(acquire, KEYS[key], KEYS[key + 1], id, limit, attempt, provenance)
  replies[#replies + 1] = (ok or type(reply) == 'table') and reply or {err = reply}
  arg = arg + 4
end
return replies
