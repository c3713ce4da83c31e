-- For each user: gives slots back, or undoes one acquire. A release writes even where nothing is held, so that a store
-- that refuses writes says so.
-- KEYS    for each user: slots    sorted set: request id -> expiry in ms of Redis's clock
--                        details  hash: request id -> "started_ms\nlimit\nattempt\n…"
-- ARGV    initial_ttl_ms, then for each user: attempt ('': release; else remove only what this attempt took and nothing
--         has renewed since), how many request ids, request id, ...
-- Returns for each user {1 removed while live, 0 not there (or not this attempt's), -1 removed after its expiry; ...},
--         or the error that her keys met
local call = redis.call
local initial_ttl_ms = tonumber(ARGV[1])

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function took(details, id, attempt, expiry_ms)
  local started_ms, held_attempt = string.match(call('HGET', details, id) or '', '^(%d+)\n%-?%d+\n(%w*)\n')
  return held_attempt == attempt and expiry_ms == started_ms + initial_ttl_ms
end

local function release(slots, details, attempt, first, last)
  local answers = {}
  for i = first, last do
    local id, answer = ARGV[i], 0
    local expiry_ms = tonumber(call('ZSCORE', slots, id) or 0)
    if attempt == '' or took(details, id, attempt, expiry_ms) then
      call('HDEL', details, id)
      if call('ZREM', slots, id) == 1 then answer = expiry_ms > now_ms and 1 or -1 end
    end
    answers[#answers + 1] = answer
  end
  return answers
end

local replies, arg = {}, 2
for key = 1, #KEYS, 2 do
  local last = arg + 1 + tonumber(ARGV[arg + 1])
  local ok, reply = pcall(release, KEYS[key], KEYS[key + 1], ARGV[arg], arg + 2, last)
  replies[#replies + 1] = (ok or type(reply) == 'table') and reply or {err = reply}
  arg = last + 1
end
return replies
