-- Frees a lock, whoever holds it. Notifies the first client in the wait queue (see `wait_queue.lua`) and all listeners. A
-- client that caches the lock gets a recall, and then learns that it has lost the lock.
--
-- KEYS[1] lock      the lock's hash: owner -> hold count; for leasehold:cached see `check_cached.lua`
-- ARGV[1] channel   the channel on which waiters listen
--
-- Returns {'freed'}    the lock was held and is free now
--         {'free'}     no owner held the lock
--         {'no_lock'}  the hash is not a lock (see `owners.lua`); nothing changed
local lock, channel = KEYS[1], ARGV[1]

if redis.call('pttl', lock) ~= -2 and not is_lock(lock) then
  return {'no_lock'}
end
local fields = redis.pcall('hexists', lock, 'leasehold:cached') == 1 and redis.pcall('hkeys', lock) or {}
if redis.call('del', lock) == 0 then
  return {'free'}
end
for at = 1, #fields do
  if fields[at]:sub(1, 10) ~= 'leasehold:' then
    recall(lock, fields[at])
  end
end
notify_next(lock, true)
redis.pcall('publish', channel, '0')
return {'freed'}
