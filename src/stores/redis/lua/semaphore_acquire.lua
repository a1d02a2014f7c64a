-- Takes permits of a semaphore, once for each request.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] request    what became of the request
-- ARGV[1] units      how many permits are wanted
-- ARGV[2] lasts_ms   how long the request is remembered
-- ARGV[3] client     who wants them
-- ARGV[4] queue_mode  what the queue (see `permits_queue.lua`) means to it, as in `acquire.lua`
-- ARGV[5] waited_ms  for how long it has waited
--
-- Returns {'granted'}     they are taken, by this or by an earlier sending of the request
--         {'busy', left_ms}   there are too few, or they are reserved for so long; -1: too few, or the request was
--                             given up
--         {'queued', -1, 'soon'}                  the same, and the client is in the queue
--         {'queued', left_ms, 'soon', 'first'}    the same, and it is the first
--         {'none'}        nobody has set the semaphore up
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
  -- Removes nothing, but a replica refuses it: an answer of a replica does not count.
  redis.call('hdel', request, '')
  if not count then
    return {'none'}
  end
  -- The client with the reservation may be gone, so the first in the queue asks when the reservation ends.
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
