-- Prefix of scripts that renew a lock for its owner.
--
-- Defines `prolong`: extends the lock to at least a lease from now, and returns whether the owner holds it
local function prolong(lock, owner, lease_ms)
  if redis.call('hexists', lock, owner) == 0 then
    -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
    redis.call('hdel', lock, owner)
    return false
  end
  if redis.call('pttl', lock) < lease_ms then
    redis.call('pexpire', lock, lease_ms)
  end
  return true
end
