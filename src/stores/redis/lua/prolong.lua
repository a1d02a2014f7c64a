-- Prefix of scripts that renew a lock for its owner.
--
-- Defines `prolong`: extends the lock's expiry to at least `lease_ms` from now; returns whether the owner holds the lock
local function prolong(lock, owner, lease_ms)
  if redis.call('hexists', lock, owner) == 0 then
    -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
    redis.call('hdel', lock, owner)
    return false
  end
  if redis.call('pttl', lock) < lease_ms then
    redis.call('pexpire', lock, lease_ms)
  end
  return true
end
