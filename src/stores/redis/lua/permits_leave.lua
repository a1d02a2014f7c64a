-- Removes a client from the queue for permits (see `permits_queue.lua`), and passes its reservation on to the next client.
--
-- KEYS[1] permits   the number of free permits
-- ARGV[1] client    the client that no longer waits
--
-- Returns {'left'}
local permits, client = KEYS[1], ARGV[1]

local tag = permits:find('{', 1, true) and permits or '{' .. permits .. '}'
redis.pcall('zrem', 'leasehold_lock_queue:' .. tag, client)
redis.pcall('zrem', 'leasehold_lock_next:' .. tag, client)
notify_for_permits(tag, tonumber(redis.pcall('get', permits)) or 0)
return {'left'}
