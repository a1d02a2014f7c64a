-- Takes permits with ids and a lease, once.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] out        id -> when its lease ends
-- ARGV[1] channel    where waiters listen
-- ARGV[2] lease_ms   how long they shall be out, at least
--         ids        the others: one for each permit, 16 bytes
--
-- Returns {'granted'}        they are out under these ids
--         {'busy', ttl_ms}   there are too few; the next lease ends then, -1: none does
--         {'none'}           nobody has set the semaphore up
local permits, out = KEYS[1], KEYS[2]
local channel, lease_ms = ARGV[1], tonumber(ARGV[2])
local ids = {unpack(ARGV, 3)}
local units = #ids

redis.call('get', permits) -- what holds no permits raises here, before anything is written
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_out = redis.call('zscore', out, ids[1])
-- Those whose leases are over come back; not those that are asked for again.
local wanted = {}
for _, id in ipairs(ids) do
  wanted[id] = true
end
local over = redis.call('zrangebyscore', out, 0, now_ms, 'LIMIT', 0, 2 * units)
local back = 0
for _, id in ipairs(over) do
  if not wanted[id] and back < units then
    redis.call('zrem', out, id)
    back = back + 1
  end
end
-- A semaphore that was deleted is not brought back by permits that were taken from it.
if back > 0 and redis.call('get', permits) then
  local count = redis.call('incrby', permits, back)
  if count > 0 then
    redis.pcall('publish', channel, count)
  end
end

if not is_out then
  local count = redis.call('get', permits)
  if (tonumber(count) or 0) < units then
    -- Removes nothing, but a replica refuses it: what only a replica says is no answer.
    redis.call('zrem', out, '')
    if not count then
      return {'none'}
    end
    local first = redis.call('zrange', out, 0, 0, 'WITHSCORES')
    -- Redisson's number for never.
    if first[2] and tonumber(first[2]) < 922337203685477 then
      return {'busy', math.max(tonumber(first[2]) - now_ms, 0)}
    end
    return {'busy', -1}
  end
end
for _, id in ipairs(ids) do
  redis.call('zadd', out, 'GT', now_ms + lease_ms, id)
end
if not is_out then
  local left = redis.pcall('decrby', permits, units)
  if type(left) ~= 'number' then
    redis.call('zrem', out, unpack(ids))
    return left
  end
end
local ttl_ms = redis.call('pttl', permits)
if ttl_ms > 0 then
  redis.call('pexpire', out, ttl_ms)
end
return {'granted'}
