-- Extends a token lock's expiry to at least `lease_ms` from now, if the lock contains the caller's token.
--
-- KEYS[1] lock       the lock's string: its owner's token
-- ARGV[1] token      the token of the owner that holds the lock
-- ARGV[2] lease_ms   the minimum time that the lock shall be held from now on
--
-- Returns {'renewed'}   the lock is held for at least that time
--         {'lost'}      the owner does not hold the lock
local lock = KEYS[1]
local token, lease_ms = ARGV[1], tonumber(ARGV[2])

local holder = redis.call('get', lock)
if holder == token then
  if redis.call('pttl', lock) < lease_ms then
    redis.call('pexpire', lock, lease_ms)
  end
  return {'renewed'}
end
if not holder then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('del', lock)
end
return {'lost'}
