-- Frees a read-write lock if this half is held, whoever holds it, and notifies the waiters.
--
-- KEYS[1] lock      the lock's hash
-- ARGV[1] half      'read' or 'write'
-- ARGV[2] channel   the channel on which waiters listen
--
-- Returns {'freed'}    this half was held, and the lock is free now
--         {'free'}     this half was not held; nothing changed
--         {'no_lock'}  the hash is not a lock; nothing changed
local lock = KEYS[1]
local half, channel = ARGV[1], ARGV[2]

if redis.call('hget', lock, 'mode') ~= half then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can answer 'free'.
  redis.call('hdel', lock, '')
  return {'free'}
end
if not is_lock(lock) then
  return {'no_lock'}
end
redis.call('del', lock)
notify_next(lock, true)
-- '1' wakes all of Redisson's waiters that sleep, '0' also one that is about to sleep.
redis.pcall('publish', channel, '1')
redis.pcall('publish', channel, '0')
return {'freed'}
