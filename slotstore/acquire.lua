-- Takes a slot, renews the one that this request id holds, or denies and changes nothing but the prune.
-- KEYS[1] slots    sorted set: request id -> expiry in ms of Redis's clock
-- KEYS[2] details  hash: request id -> "started_ms\nlimit\nattempt\nip\nuri\nuser agent"
-- ARGV    request id, limit (-1: unlimited), initial_ttl_ms, slot_ttl_ms, attempt, provenance
-- Returns {outcome (0 denied, 1 granted, 2 renewed), used, ms to the earliest expiry, pruned, holder, holder, ...}
local slots, details = KEYS[1], KEYS[2]
local id, limit, initial_ttl_ms, slot_ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local attempt, provenance = ARGV[5], ARGV[6]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local pruned = 0
repeat -- in steps, because unpack takes some thousands at the most
  local dead = redis.call('ZRANGEBYSCORE', slots, '-inf', now_ms, 'LIMIT', 0, 1000)
  if #dead > 0 then
    redis.call('ZREM', slots, unpack(dead))
    redis.call('HDEL', details, unpack(dead))
    pruned = pruned + #dead
  end
until #dead < 1000

local used = redis.call('ZCARD', slots)
local expiry_ms, started_ms, outcome = now_ms + initial_ttl_ms, now_ms, 1
local held_ms = redis.call('ZSCORE', slots, id)
if held_ms then
  expiry_ms = math.max(expiry_ms, tonumber(held_ms))
  local detail = redis.call('HGET', details, id) or ''
  local held_started_ms, held_attempt = string.match(detail, '^(%d+)\n%-?%d+\n(%w*)\n')
  started_ms = tonumber(held_started_ms) or now_ms
  if held_attempt ~= attempt then -- the same attempt, sent again by the driver, is still the one that took the slot
    outcome, attempt = 2, ''
  end
elseif limit < 0 or used < limit then
  if used == 0 and redis.call('EXISTS', details) == 1 then redis.call('DEL', details) end -- an evicted set's leftovers
  used = used + 1
else
  local first = redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES')
  local earliest_ms = first[2] and tonumber(first[2]) - now_ms or 0
  return {0, used, earliest_ms, pruned, unpack(redis.call('ZRANGE', slots, 0, 19))}
end

redis.call('ZADD', slots, expiry_ms, id)
redis.call('HSET', details, id, string.format('%.0f\n%d\n%s\n%s', started_ms, limit, attempt, provenance))
local key_ttl_ms = expiry_ms - now_ms + slot_ttl_ms
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < key_ttl_ms then redis.call('PEXPIRE', key, key_ttl_ms) end
end
return {outcome, used, 0, pruned}
