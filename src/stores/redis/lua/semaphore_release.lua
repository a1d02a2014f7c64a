-- Gives permits of a semaphore back, and publishes how many are free. A repetition gives no more permits back.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] request    the recorded outcome of the request that took the permits: 'granted', 'released' or 'void' (undone)
-- ARGV[1] units      how many permits that request took
-- ARGV[2] lasts_ms   how long the outcome is recorded
-- ARGV[3] way        'release'; 'undo': gives the permits back only if that request took them; otherwise makes a copy of
--                    that request that arrives later fail
-- ARGV[4] channel    the channel on which waiters listen
--
-- Returns {'freed', listeners}   the permits are back, by this release or by an earlier copy. listeners: how many clients
--                                received the message; 0 also if permits were free before; -3: the first client in the
--                                queue was notified (see `permits_queue.lua`)
--         {'not_held'}           the request had not taken any permits
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
-- PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
redis.call('pexpire', request, lasts_ms)
redis.call('set', request, 'released', 'PX', lasts_ms)
if not redis.call('get', permits) then
  -- The semaphore was deleted or has expired, and INCRBY would recreate it.
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
-- If a permit was free before this release, most receivers do not wait for permits, so they are not counted.
if type(listeners) == 'number' and count <= tonumber(units) then
  return {'freed', listeners}
end
return {'freed', 0}
