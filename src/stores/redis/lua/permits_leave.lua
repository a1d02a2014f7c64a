-- Takes a client out of the line for permits (see `permits_line.lua`), and passes on what was kept for it.
--
-- KEYS[1] permits   how many there are
-- ARGV[1] client    who waits no more
--
-- Returns {'left'}
local permits, client = KEYS[1], ARGV[1]

local tag = permits:find('{', 1, true) and permits or '{' .. permits .. '}'
redis.pcall('zrem', 'leasehold_lock_line:' .. tag, client)
redis.pcall('zrem', 'leasehold_lock_next:' .. tag, client)
tell_permits(tag, tonumber(redis.pcall('get', permits)) or 0)
return {'left'}
