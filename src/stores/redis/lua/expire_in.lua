-- Sets the expiry of an owner's lock to `rest_ms` from now, even if that is sooner than before.
--
-- KEYS[1] lock     the lock's hash: owner -> hold count
-- ARGV[1] owner    the owner that holds the lock
-- ARGV[2] rest_ms  the remaining time that the lock shall be held
--
-- Returns {'renewed'}  the expiry is set
--         {'lost'}     the owner does not hold the lock; nothing changed
local lock = KEYS[1]
local owner, rest_ms = ARGV[1], ARGV[2]

if redis.call('hexists', lock, owner) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
redis.call('pexpire', lock, rest_ms)
return {'renewed'}
