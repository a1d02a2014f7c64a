-- Has an owner's lock end by itself after `rest_ms`, sooner or later than it would.
--
-- KEYS[1] lock     the lock's hash: owner -> hold count
-- ARGV[1] owner    who holds it
-- ARGV[2] rest_ms  how long it shall run from now on
--
-- Returns {'renewed'}  it ends then
--         {'lost'}     the owner does not hold it; nothing changed
local lock = KEYS[1]
local owner, rest_ms = ARGV[1], ARGV[2]

if redis.call('hexists', lock, owner) == 0 then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
redis.call('pexpire', lock, rest_ms)
return {'renewed'}
