-- The cap without a sidecar: nginx's Lua module runs streamcap's own acquire.lua and release.lua. It does what an
-- operator who knows OpenResty would do: pooled connections, EVALSHA, fail open, release from a timer in the log phase.
-- luacheck: std ngx_lua
local redis = require "nginx.redis"

local peer = {}
local settings

local timeout_ms, idle_ms, pool_size = 100, 60000, 64

-- One of slotstore's scripts, and its name in Redis's cache.
local function script(directory, name)
    local file = assert(io.open(directory .. "/" .. name .. ".lua"))
    local text = assert(file:read("*a"))
    file:close()
    local sha = ngx.sha1_bin(text):gsub(".", function(byte) return string.format("%02x", byte:byte()) end)
    return { text = text, sha = sha }
end

-- What init_by_lua says: host, port, prefix, ttl_ms, default_limit, limits by plan, scripts (their directory).
function peer.setup(given)
    settings = given
    settings.acquire = script(given.scripts, "acquire")
    settings.release = script(given.scripts, "release")
end

-- Runs a script for one user on a pooled connection. Returns its reply for her, or nil and an error.
local function run(what, ...)
    local client = redis:new()
    client:set_timeout(timeout_ms)
    local ok, err = client:connect(settings.host, settings.port)
    if not ok then
        return nil, err
    end
    local reply
    reply, err = client:evalsha(what.sha, 2, ...)
    if not reply and err and err:find("^NOSCRIPT") then
        reply, err = client:eval(what.text, 2, ...)
    end
    if reply == nil then
        client:close()
        return nil, err
    end
    client:set_keepalive(idle_ms, pool_size)
    local hers = reply and reply[1]
    if not hers or hers[1] == false then -- her keys met an error
        return nil, hers and hers[2] or err
    end
    return hers
end

-- A user's two keys: bytes that could end a hash tag are percent-encoded.
local function keys(user)
    local escaped = user
    if ngx.re.find(user, "[^A-Za-z0-9._@-]", "jo") then
        escaped = user:gsub("[^A-Za-z0-9._@-]", function(byte) return string.format("%%%02X", byte:byte()) end)
    end
    local tag = settings.prefix .. ":{" .. escaped .. "}:"
    return tag .. "slots", tag .. "details"
end

-- access_by_lua
function peer.acquire()
    local var = ngx.var
    local user, id = var.stream_user, var.request_id
    if not user or user == "" then
        var.streamcap_slot, var.streamcap_reason = "uncounted", "no_user"
        return
    end
    local limit = tonumber(var.stream_limit) or settings.limits[var.stream_plan] or settings.default_limit
    local slots, details = keys(user)
    local attempt = string.format("%x", math.random(0, 2147483647))
    local provenance = table.concat({ var.remote_addr, var.stream_uri, var.stream_user_agent }, "\n")
    local ttl_ms = settings.ttl_ms
    local reply, err = run(settings.acquire, slots, details, ttl_ms, ttl_ms, id, limit, attempt, provenance)
    if not reply then
        ngx.log(ngx.ERR, "acquire: ", err)
        var.streamcap_slot, var.streamcap_reason = "failopen", "unavailable"
        return
    end
    if reply[1] == 0 then
        var.streamcap_slot, var.streamcap_reason = "denied", "stream_limit_reached"
        var.streamcap_limit, var.streamcap_used = limit, reply[2]
        var.streamcap_retry_after = math.ceil(reply[3] / 1000)
        return ngx.exit(403)
    end
    var.streamcap_slot = "held"
end

local function release(_, user, id)
    local slots, details = keys(user)
    local reply, err = run(settings.release, slots, details, settings.ttl_ms, "", 1, id)
    if not reply then
        ngx.log(ngx.ERR, "release: ", err)
    end
end

-- log_by_lua: no socket can be used here, hence the timer.
function peer.log()
    local var = ngx.var
    if var.streamcap_slot ~= "held" then
        return
    end
    local ok, err = ngx.timer.at(0, release, var.stream_user, var.request_id)
    if not ok then
        ngx.log(ngx.ERR, "release: no timer: ", err)
    end
end

return peer
