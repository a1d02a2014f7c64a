-- Gives permits back by their ids, and publishes how many are free.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] acquired   id of an acquired permit -> when its lease ends
-- ARGV[1] channel    the channel on which waiters listen
--         ids        all further arguments: one id of 16 bytes for each permit
--
-- Returns {'freed', listeners}   all permits were acquired and their leases had not ended. listeners: how many clients
--                                received the message; 0 also if permits were free before; -3: the first client in the
--                                queue was notified (see `permits_queue.lua`)
--         {'not_held'}           some permits were not acquired or their leases had ended; the others are back
local permits, acquired = KEYS[1], KEYS[2]
local channel, ids = ARGV[1], {unpack(ARGV, 2)}

redis.call('get', permits) -- if the key has another type, the script fails here, before it has written anything
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- This ZREM changes nothing. On a replica, or if the user may not ZREM, the script fails here, before any change. ZREM is
-- first: for lack of memory, Redis refuses only a script's first write, and never ZREM.
redis.call('zrem', acquired, '')
local back, good, listeners = {}, 0, 0
local seen = {}
for _, id in ipairs(ids) do
  local until_ms = redis.call('zscore', acquired, id)
  if until_ms and not seen[id] then
    seen[id] = true
    back[#back + 1] = id
    good = good + (tonumber(until_ms) > now_ms and 1 or 0)
  end
end
-- Without GET, INCRBY would recreate a deleted semaphore.
local count = #back > 0 and redis.call('get', permits) and redis.call('incrby', permits, #back)
if #back > 0 then
  redis.call('zrem', acquired, unpack(back))
end
if count then
  local is_notified = notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
  local receivers = count > 0 and redis.pcall('publish', channel, count)
  -- If a permit was free before this release, most receivers do not wait for permits, so they are not counted.
  if is_notified then
    listeners = -3
  elseif type(receivers) == 'number' and count <= #back then
    listeners = receivers
  end
end
return good == #ids and {'freed', listeners} or {'not_held'}
