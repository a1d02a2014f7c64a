-- Takes permits of a semaphore, once for each request.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] request    what became of the request
-- ARGV[1] units      how many permits are wanted
-- ARGV[2] lasts_ms   how long the request is remembered
--
-- Returns {'granted'}     they are taken, by this or by an earlier sending of the request
--         {'busy', -1}    there are too few, or the request was given up
--         {'none'}        nobody has set the semaphore up
local permits, request = KEYS[1], KEYS[2]
local units, lasts_ms = tonumber(ARGV[1]), ARGV[2]

local was = redis.call('get', request)
if was then
  return was == 'granted' and {'granted'} or {'busy', -1}
end
local count = redis.call('get', permits)
if (tonumber(count) or 0) < units then
  -- Removes nothing, but a replica refuses it: what only a replica says is no answer.
  redis.call('hdel', request, '')
  return count and {'busy', -1} or {'none'}
end
redis.call('set', request, 'granted', 'PX', lasts_ms)
local left = redis.pcall('decrby', permits, units)
if type(left) ~= 'number' then
  redis.call('del', request)
  return left
end
return {'granted'}
