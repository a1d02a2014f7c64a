-- Takes a client out of a lock's line (see `line.lua`), and passes on what was kept for it.
--
-- KEYS[1] lock     the lock's hash
-- ARGV[1] client   who waits no more
--
-- Returns {'left'}
local lock, client = KEYS[1], ARGV[1]

local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local removed = redis.pcall('zrem', 'leasehold_lock_line:' .. tag, client)
if redis.pcall('get', 'leasehold_lock_next:' .. tag) == client then
  redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)
  tell_line(lock, redis.call('pttl', lock) == -2)
elseif removed == 1 then
  tell_line(lock, false)
end
return {'left'}
