-- Takes permits with ids and a lease. A repetition of the request takes no more permits.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] acquired   id of an acquired permit -> when its lease ends
-- ARGV[1] channel    the channel on which waiters listen
-- ARGV[2] lease_ms   the minimum time for which the permits are acquired from now on
-- ARGV[3] client     the client that wants the permits
-- ARGV[4] queue_mode  how the attempt treats the queue (see `permits_queue.lua`), as in `acquire.lua`
-- ARGV[5] waited_ms  how long the caller has waited, which decides its client's place in the queue
--         ids        all further arguments: one id of 16 bytes for each permit
--
-- Returns {'granted'}        the permits are acquired under these ids
--         {'busy', ttl_ms}   too few permits are free; ttl_ms: until a permit's lease or a client's reservation ends, -1:
--                            none of them ends
--         {'queued', ttl_ms, 'soon', 'first'}    as 'busy', but the client is the first in the queue. 'soon': the next
--                                                release notifies the queue
--         {'queued', -1, 'soon'}                 as 'busy', but the client is in the queue, behind others
--         {'none'}           the semaphore is not set up
local permits, acquired = KEYS[1], KEYS[2]
local channel, lease_ms, client = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local queue_mode, waited_ms = ARGV[4], tonumber(ARGV[5])
local ids = {unpack(ARGV, 6)}
local tag = permits:find('{', 1, true) and permits or '{' .. permits .. '}'
local units = #ids

redis.call('get', permits) -- if the key has another type, the script fails here, before it has written anything
local ttl_ms = redis.call('pttl', permits)
if ttl_ms > 0 then
  -- Fails if the user may not PEXPIRE, before a key without an expiry exists.
  redis.call('pexpire', acquired, ttl_ms)
end
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_out = redis.call('zscore', acquired, ids[1])
-- Takes back permits whose leases have ended, except those that this request asks for.
local wanted = {}
for _, id in ipairs(ids) do
  wanted[id] = true
end
local over = redis.call('zrangebyscore', acquired, 0, now_ms, 'LIMIT', 0, 2 * units)
local back = {}
for _, id in ipairs(over) do
  if not wanted[id] and #back < units then
    back[#back + 1] = id
  end
end
if #back > 0 then
  -- This write changes nothing, but fails here, before any change, if the user may not run the command.
  redis.call('zrem', acquired, '')
  -- Without GET, INCRBY would recreate a deleted semaphore.
  local count = redis.call('get', permits) and redis.call('incrby', permits, #back) or 0
  redis.call('zrem', acquired, unpack(back))
  if count > 0 then
    redis.pcall('publish', channel, count)
  end
end

if not is_out then
  local count = redis.call('get', permits)
  local number = tonumber(count) or 0
  if number < units or not may_take(tag, client, queue_mode, number - units) then
    -- This write changes nothing. A replica refuses it, so that no replica with stale data can answer.
    redis.call('zrem', acquired, '')
    if not count then
      return {'none'}
    end
    local first, ends_ms = redis.call('zrange', acquired, 0, 0, 'WITHSCORES'), -1
    -- Redisson writes 922337203685477 as the end of a lease that never ends.
    if first[2] and tonumber(first[2]) < 922337203685477 then
      ends_ms = math.max(tonumber(first[2]) - now_ms, 0)
    end
    -- The client that has the reservation may be dead, so the first in the queue attempts when the reservation ends.
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
-- The count changes first: if the server refuses that write, `acquired` is unchanged.
local left = not is_out and redis.call('decrby', permits, units)
for _, id in ipairs(ids) do
  local added = redis.pcall('zadd', acquired, 'GT', now_ms + lease_ms, id)
  if type(added) ~= 'number' then
    if not is_out then
      redis.call('incrby', permits, units)
    end
    return added
  end
end
if ttl_ms > 0 then
  redis.call('pexpire', acquired, ttl_ms) -- expires with the semaphore, as in Redisson
end
if left then
  leave_queue(tag, client, queue_mode, left)
end
return {'granted'}
