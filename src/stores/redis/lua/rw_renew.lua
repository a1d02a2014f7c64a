-- Extends a read hold so that it ends at least `lease_ms` from now.
--
-- KEYS[1] lock       the lock's hash: reader -> hold count
-- ARGV[1] owner      the reader
-- ARGV[2] lease_ms   the minimum time that the hold shall last from now on
-- ARGV[3] markers    prefix of the markers, one for each living level of the hold: prefix .. level
--
-- Returns {'renewed'}  the hold lasts at least for that time
--         {'lost'}     the owner does not hold the read half; nothing changed
local lock = KEYS[1]
local owner, lease_ms, markers = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local count = redis.call('hget', lock, owner)
if not count then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease_ms))
for level = 1, tonumber(count) do
  local marker = markers .. level
  redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
end
return {'renewed'}
