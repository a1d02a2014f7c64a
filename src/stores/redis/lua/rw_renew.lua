-- Extends a read hold so that it ends `lease_ms` from now at the earliest.
--
-- KEYS[1] lock       the lock's hash: reader -> hold count
-- ARGV[1] owner      the reader
-- ARGV[2] lease_ms   the least time that the hold shall run from now
-- ARGV[3] markers    prefix of the keys whose existence shows that a level of the hold is alive: this and 1, 2, …
--
-- Returns {'renewed'}  the hold runs for at least that time
--         {'lost'}     the owner does not read; nothing changed
local lock = KEYS[1]
local owner, lease_ms, markers = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local count = redis.call('hget', lock, owner)
if not count then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease_ms))
for level = 1, tonumber(count) do
  local marker = markers .. level
  redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
end
return {'renewed'}
