-- What wrk sends: streams of random users, with a browser's name. Its last line is the result as JSON.
-- luacheck: globals wrk init request done
local users

function init(args)
    users = tonumber(args[1])
    math.randomseed(tonumber(args[2]))
    wrk.headers["User-Agent"] = args[3]
end

function request()
    wrk.headers["Authorization"] = "u-" .. math.random(users)
    return wrk.format("GET", "/stream/v1/conversations/7d1c8c2e/messages")
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '\n{"requests":%d,"seconds":%.6f,"not_200":%d,"broken":%d,"p50_ms":%.4f,"p99_ms":%.4f,"max_ms":%.4f}\n',
        summary.requests, summary.duration / 1e6, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout,
        latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
