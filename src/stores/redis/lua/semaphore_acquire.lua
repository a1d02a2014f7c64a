-- Takes permits of a semaphore. A repetition of the request takes no more permits.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] request    the recorded outcome of this request: 'granted', 'released' or 'void' (undone)
-- ARGV[1] units      how many permits are wanted
-- ARGV[2] lasts_ms   how long the outcome is recorded
-- ARGV[3] client     the client that wants the permits
-- ARGV[4] queue_mode  how the attempt treats the queue (see `permits_queue.lua`), as in `acquire.lua`
-- ARGV[5] waited_ms  how long the caller has waited, which decides its client's place in the queue
--
-- Returns {'granted'}     the permits are taken, by this request or by an earlier copy of it
--         {'busy', left_ms}   too few permits are free, or they are reserved for so long. left_ms -1: too few are free, or
--                             the request was undone or released, so nobody waits for this reply
--         {'queued', -1, 'soon'}                  as 'busy', but the client is in the queue
--         {'queued', left_ms, 'soon', 'first'}    as above, and the client is the first in the queue
--         {'none'}        the semaphore is not set up
local permits, request = KEYS[1], KEYS[2]
local units, lasts_ms, client = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local queue_mode, waited_ms = ARGV[4], tonumber(ARGV[5])
local tag = permits:find('{', 1, true) and permits or '{' .. permits .. '}'

local was = redis.call('get', request)
if was then
  return was == 'granted' and {'granted'} or {'busy', -1}
end
local count = redis.call('get', permits)
local number = tonumber(count) or 0
if number < units or not may_take(tag, client, queue_mode, number - units) then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can answer.
  redis.call('hdel', request, '')
  if not count then
    return {'none'}
  end
  -- The client that has the reservation may be dead, so the first in the queue attempts when the reservation ends.
  local left_ms = number < units and -1 or reserved_left_ms(tag)
  local is_first = stand_for_permits(tag, client, queue_mode, waited_ms, number)
  if is_first == nil then
    return {'busy', left_ms}
  end
  return is_first and {'queued', left_ms, 'soon', 'first'} or {'queued', -1, 'soon'}
end
redis.call('set', request, 'granted', 'PX', lasts_ms)
local left = redis.pcall('decrby', permits, units)
if type(left) ~= 'number' then
  redis.call('del', request)
  return left
end
leave_queue(tag, client, queue_mode, left)
return {'granted'}
