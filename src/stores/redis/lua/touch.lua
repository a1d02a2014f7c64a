-- Writes a lock's expiry again as it is, so that the connection has a write for WAIT to count from.
--
-- KEYS[1] lock   the lock's key, of any type
--
-- Returns 1   written
--         0   the key is not there, or has no expiry
local lock = KEYS[1]

local ttl_ms = redis.call('pttl', lock)
if ttl_ms > 0 then
  return redis.call('pexpire', lock, ttl_ms)
end
return 0
