-- Gives permits of a semaphore back, once for each request, and publishes how many there are.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] request    what became of the request that took them
-- ARGV[1] units      how many permits it took
-- ARGV[2] lasts_ms   how long it is remembered that it gave them back
-- ARGV[3] way        'release'; 'undo': only if the request did take them, and it never shall from now on
-- ARGV[4] channel    where waiters listen
--
-- Returns {'freed', listeners}   they are back, by this or by an earlier sending. listeners: how many heard
--                                of it, 0 also if there were permits before; -3: the first in the queue did (see
--                                `permits_queue.lua`)
--         {'not_held'}           the request had taken none
local permits, request = KEYS[1], KEYS[2]
local units, lasts_ms, way, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local was = redis.call('get', request)
if was == 'released' then
  return {'freed', 0}
end
if was == 'void' or way == 'undo' and was ~= 'granted' then
  redis.call('set', request, 'void', 'PX', lasts_ms)
  return {'not_held'}
end
-- Lets what follows pass when the server is out of memory.
redis.call('pexpire', request, lasts_ms)
redis.call('set', request, 'released', 'PX', lasts_ms)
if not redis.call('get', permits) then
  -- The semaphore was deleted or has expired: permits that come back must not recreate it.
  return {'freed', 0}
end
local count = redis.pcall('incrby', permits, units)
if type(count) ~= 'number' then
  redis.call('set', request, 'granted', 'PX', lasts_ms)
  return count
end
local is_notified = notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
local listeners = count > 0 and redis.pcall('publish', channel, count)
if is_notified then
  return {'freed', -3}
end
-- As long as there were permits, no client waited.
if type(listeners) == 'number' and count <= tonumber(units) then
  return {'freed', listeners}
end
return {'freed', 0}
