-- Has an owner's lock run for at least a lease from now on.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count
-- ARGV[1] owner      who holds it
-- ARGV[2] lease_ms   how long it shall run, at least
--
-- Returns {'renewed'}   it does
--         {'lost'}      the owner does not hold it
local lock = KEYS[1]
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])

if redis.call('hexists', lock, owner) == 0 then
  -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
if redis.call('pttl', lock) < lease_ms then
  redis.call('pexpire', lock, lease_ms)
end
return {'renewed'}
