-- Ends the wait of a client's writers: removes the client from the wait queue of a read-write lock (see `wait_queue.lua`),
-- and passes its reservation on. Without `channel`, ends the wait of the client's readers instead (see `readers.lua`).
--
-- KEYS[1] lock      the lock's hash
-- ARGV[1] client    the client that no longer waits
-- ARGV[2] channel   the channel on which readers listen; left out for the client's readers
--
-- Returns {'left'}
local lock, client, channel = KEYS[1], ARGV[1], ARGV[2]

local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
if not channel then
  forget_reader(tag, client)
  return {'left'}
end
local removed = redis.pcall('zrem', 'leasehold_lock_queue:' .. tag, client)
if redis.pcall('get', 'leasehold_lock_next:' .. tag) == client then
  redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)
  removed = notify_next(lock, redis.call('pttl', lock) == -2) and 0 or 1
elseif removed == 1 then
  notify_next(lock, false)
end
-- Readers may have waited for this writer. '1' wakes them, and all of Redisson's waiters.
if removed == 1 and redis.pcall('exists', 'leasehold_rwlock_readers:' .. tag) == 1 then
  redis.pcall('publish', channel, '1')
end
return {'left'}
