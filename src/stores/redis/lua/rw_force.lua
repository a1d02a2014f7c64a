-- Frees a read-write lock of which this half is held, whoever holds it, and notifies the waiters.
--
-- KEYS[1] lock      the lock's hash
-- ARGV[1] half      'read' or 'write'
-- ARGV[2] channel   where waiters listen
--
-- Returns {'freed'}    it was held so
--         {'free'}     it was not; nothing changed
--         {'no_lock'}  the hash is something else; nothing changed
local lock = KEYS[1]
local half, channel = ARGV[1], ARGV[2]

if redis.call('hget', lock, 'mode') ~= half then
  -- Removes nothing, but a replica refuses it, and so does not answer 'free'.
  redis.call('hdel', lock, '')
  return {'free'}
end
if not is_lock(lock) then
  return {'no_lock'}
end
redis.call('del', lock)
notify_next(lock, true)
-- 1 wakes all of Redisson's waiters that sleep; 0 is kept for one that is about to.
redis.pcall('publish', channel, '1')
redis.pcall('publish', channel, '0')
return {'freed'}
