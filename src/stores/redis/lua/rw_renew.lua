-- Has a read hold run for `lease_ms` from now, at least.
--
-- KEYS[1] lock       the lock's hash: reader -> hold count
-- ARGV[1] owner      the reader
-- ARGV[2] lease_ms   how long it shall run, at least
-- ARGV[3] markers    the keys by which its holds count as alive are this and 1, 2, …
--
-- Returns {'renewed'}  it does
--         {'lost'}     the owner does not read; nothing changed
local lock = KEYS[1]
local owner, lease_ms, markers = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local count = redis.call('hget', lock, owner)
if not count then
  -- Removes nothing, but a replica refuses it: an answer of a replica is no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease_ms))
for level = 1, tonumber(count) do
  local marker = markers .. level
  redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
end
return {'renewed'}
