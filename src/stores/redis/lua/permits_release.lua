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
-- This write changes nothing. A replica refuses it, as does a server on which the user may not ZREM, before the
-- script has changed anything. Redis checks its memory only before a script's first write, and always allows this one.
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
-- The permits must not recreate a deleted semaphore.
local count = #back > 0 and redis.call('get', permits) and redis.call('incrby', permits, #back)
if #back > 0 then
  redis.call('zrem', acquired, unpack(back))
end
if count then
  local is_notified = notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
  local receivers = count > 0 and redis.pcall('publish', channel, count)
  -- Receivers count as waiters only if no permit was free before this release: otherwise most of them do not wait.
  if is_notified then
    listeners = -3
  elseif type(receivers) == 'number' and count <= #back then
    listeners = receivers
  end
end
return good == #ids and {'freed', listeners} or {'not_held'}
