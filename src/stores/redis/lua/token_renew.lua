-- Has a token lock run for at least a lease from now on, if the token is the owner's.
--
-- KEYS[1] lock       the lock's string: its owner's token
-- ARGV[1] token      who holds it
-- ARGV[2] lease_ms   how long it shall run, at least
--
-- Returns {'renewed'}   it does
--         {'lost'}      the owner does not hold it
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
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('del', lock)
end
return {'lost'}
