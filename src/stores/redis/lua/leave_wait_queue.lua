-- Ends a client's wait: removes it from the lock's wait queue (see `wait_queue.lua`). If the lock is reserved for this
-- client, passes the reservation on to the next one.
--
-- KEYS[1] lock     the lock's hash
-- ARGV[1] client   the client that no longer waits
--
-- Returns {'left'}
local lock, client = KEYS[1], ARGV[1]

local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local removed = redis.pcall('zrem', 'leasehold_lock_queue:' .. tag, client)
if redis.pcall('get', 'leasehold_lock_next:' .. tag) == client then
  redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)
  notify_next(lock, redis.call('pttl', lock) == -2)
elseif removed == 1 then
  notify_next(lock, false)
end
return {'left'}
