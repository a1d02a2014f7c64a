-- Takes a token lock for one owner. A repetition only extends the lease.
--
-- KEYS[1] lock       the lock's string: its owner's token
-- ARGV[1] token      the token of the owner that wants the lock
-- ARGV[2] lease_ms   the minimum time that the lock shall be held from now on
--
-- Returns {'granted'}        the owner holds the lock
--         {'busy', ttl_ms}   another owner holds the lock; -1: for ever
local lock = KEYS[1]
local token, lease_ms = ARGV[1], tonumber(ARGV[2])

if redis.call('set', lock, token, 'NX', 'PX', lease_ms) then
  return {'granted'}
end
local ttl_ms = redis.call('pttl', lock)
if redis.call('get', lock) ~= token then
  return {'busy', ttl_ms}
end
redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))
return {'granted'}
