-- Begins a script that has a lock run on for its owner.
--
-- Returns nothing; the function has the lock run for at least a lease from now on, and returns whether the owner holds it
local function prolong(lock, owner, lease_ms)
  if redis.call('hexists', lock, owner) == 0 then
    -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
    redis.call('hdel', lock, owner)
    return false
  end
  if redis.call('pttl', lock) < lease_ms then
    redis.call('pexpire', lock, lease_ms)
  end
  return true
end
