-- Extends permits so that they end `lease_ms` from now at the earliest.
--
-- KEYS[1] out        id -> when its lease ends
-- ARGV[1] lease_ms   how long they shall be out, at least
--         ids        the others: one for each permit, 16 bytes
--
-- Returns {'renewed'}  they are
--         {'lost'}     not all were out with a lease that was not over; nothing changed
local out = KEYS[1]
local lease_ms = tonumber(ARGV[1])
local ids = {unpack(ARGV, 2)}

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(ids) do
  if (tonumber(redis.call('zscore', out, id)) or 0) <= now_ms then
    -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
    redis.call('zrem', out, '')
    return {'lost'}
  end
end
-- Removes nothing, but lets what follows pass when the server is out of memory.
redis.call('zrem', out, '')
for _, id in ipairs(ids) do
  redis.call('zadd', out, 'XX', 'GT', now_ms + lease_ms, id)
end
return {'renewed'}
