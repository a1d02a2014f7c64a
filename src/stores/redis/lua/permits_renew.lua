-- Extends the leases of permits so that they end at least `lease_ms` from now.
--
-- KEYS[1] acquired   id of an acquired permit -> when its lease ends
-- ARGV[1] lease_ms   the minimum time for which the permits remain acquired
--         ids        all further arguments: one id of 16 bytes for each permit
--
-- Returns {'renewed'}  all leases end at least `lease_ms` from now
--         {'lost'}     some permits were not acquired, or their leases had ended; nothing changed
local acquired = KEYS[1]
local lease_ms = tonumber(ARGV[1])
local ids = {unpack(ARGV, 2)}

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(ids) do
  if (tonumber(redis.call('zscore', acquired, id)) or 0) <= now_ms then
    -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
    redis.call('zrem', acquired, '')
    return {'lost'}
  end
end
-- ZREM, which changes nothing, comes first: for lack of memory, Redis refuses only a script's first write, and never ZREM.
redis.call('zrem', acquired, '')
for _, id in ipairs(ids) do
  redis.call('zadd', acquired, 'XX', 'GT', now_ms + lease_ms, id)
end
return {'renewed'}
