-- Writes a lock's expiry again without changing it. WAIT waits for the last write of its own connection only, so a
-- connection that has not written sends this first.
--
-- KEYS[1] lock   the lock's key, of any type
--
-- Returns 1   the expiry was written
--         0   the key is absent or has no expiry
local lock = KEYS[1]

local ttl_ms = redis.call('pttl', lock)
if ttl_ms > 0 then
  return redis.call('pexpire', lock, ttl_ms)
end
return 0
