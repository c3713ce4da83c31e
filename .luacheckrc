-- The scripts run inside Redis: Lua 5.1, with Redis's own names beside it.
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
