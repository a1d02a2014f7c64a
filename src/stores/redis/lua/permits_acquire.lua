-- Takes permits with ids and a lease, once.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] out        id -> when its lease ends
-- ARGV[1] channel    where waiters listen
-- ARGV[2] lease_ms   how long they shall be out, at least
-- ARGV[3] client     who wants them
-- ARGV[4] queue_mode  what the queue (see `permits_queue.lua`) means to it, as in `acquire.lua`
-- ARGV[5] waited_ms  for how long it has waited
--         ids        the others: one for each permit, 16 bytes
--
-- Returns {'granted'}        they are out under these ids
--         {'busy', ttl_ms}   there are too few; ttl_ms: until the next lease or reservation ends, -1: none does
--         {'queued', ttl_ms, 'soon', 'first'}    the same, and the client is the first in the queue
--         {'queued', -1, 'soon'}                 the same, and clients before it ask when that time is over
--         {'none'}           nobody has set the semaphore up
local permits, out = KEYS[1], KEYS[2]
local channel, lease_ms, client = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local queue_mode, waited_ms = ARGV[4], tonumber(ARGV[5])
local ids = {unpack(ARGV, 6)}
local tag = permits:find('{', 1, true) and permits or '{' .. permits .. '}'
local units = #ids

redis.call('get', permits) -- a key of another type raises here, before anything is written
local ttl_ms = redis.call('pttl', permits)
if ttl_ms > 0 then
  -- Raises if the user may not set an expiry, before there is a key without one.
  redis.call('pexpire', out, ttl_ms)
end
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_out = redis.call('zscore', out, ids[1])
-- Permits whose leases have ended come back, except those that this request asks for.
local wanted = {}
for _, id in ipairs(ids) do
  wanted[id] = true
end
local over = redis.call('zrangebyscore', out, 0, now_ms, 'LIMIT', 0, 2 * units)
local back = {}
for _, id in ipairs(over) do
  if not wanted[id] and #back < units then
    back[#back + 1] = id
  end
end
if #back > 0 then
  -- Removes nothing; if the command is refused, then before anything is written.
  redis.call('zrem', out, '')
  -- Permits that come back must not recreate a deleted semaphore.
  local count = redis.call('get', permits) and redis.call('incrby', permits, #back) or 0
  redis.call('zrem', out, unpack(back))
  if count > 0 then
    redis.pcall('publish', channel, count)
  end
end

if not is_out then
  local count = redis.call('get', permits)
  local number = tonumber(count) or 0
  if number < units or not may_take(tag, client, queue_mode, number - units) then
    -- Removes nothing, but a replica refuses it: an answer of a replica does not count.
    redis.call('zrem', out, '')
    if not count then
      return {'none'}
    end
    local first, ends_ms = redis.call('zrange', out, 0, 0, 'WITHSCORES'), -1
    -- Redisson writes this number for a lease without end.
    if first[2] and tonumber(first[2]) < 922337203685477 then
      ends_ms = math.max(tonumber(first[2]) - now_ms, 0)
    end
    -- The client with the reservation may be gone, so the first in the queue asks when the reservation ends.
    local left_ms = number < units and -1 or reserved_left_ms(tag)
    if left_ms >= 0 then
      ends_ms = left_ms
    end
    if #back > 0 then
      notify_for_permits(tag, number)
    end
    local is_first = stand_for_permits(tag, client, queue_mode, waited_ms, number)
    if is_first == nil then
      return {'busy', ends_ms}
    end
    return is_first and {'queued', ends_ms, 'soon', 'first'} or {'queued', -1, 'soon'}
  end
end
-- The count first: if this is refused, there is no new key yet.
local left = not is_out and redis.call('decrby', permits, units)
for _, id in ipairs(ids) do
  local added = redis.pcall('zadd', out, 'GT', now_ms + lease_ms, id)
  if type(added) ~= 'number' then
    if not is_out then
      redis.call('incrby', permits, units)
    end
    return added
  end
end
if ttl_ms > 0 then
  redis.call('pexpire', out, ttl_ms) -- with the semaphore, as Redisson's
end
if left then
  leave_queue(tag, client, queue_mode, left)
end
return {'granted'}
