-- Gives permits back by their ids, and publishes how many there are.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] out        id -> when its lease ends
-- ARGV[1] channel    where waiters listen
--         ids        the others: one for each permit, 16 bytes
--
-- Returns {'freed', listeners}   they were out, and their leases not over. listeners: how many heard of it, 0 also if
--                                there were permits before; -3: the first in the queue did (see `permits_queue.lua`)
--         {'not_held'}           not all were; those that were are back
local permits, out = KEYS[1], KEYS[2]
local channel, ids = ARGV[1], {unpack(ARGV, 2)}

redis.call('get', permits) -- a key of another type raises here, before anything is written
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- Removes nothing, but lets the count pass when the server is out of memory; and a replica, or a right that is
-- missing, refuses it before anything is written.
redis.call('zrem', out, '')
local back, good, listeners = {}, 0, 0
local seen = {}
for _, id in ipairs(ids) do
  local until_ms = redis.call('zscore', out, id)
  if until_ms and not seen[id] then
    seen[id] = true
    back[#back + 1] = id
    good = good + (tonumber(until_ms) > now_ms and 1 or 0)
  end
end
-- Permits that come back must not recreate a deleted semaphore.
local count = #back > 0 and redis.call('get', permits) and redis.call('incrby', permits, #back)
if #back > 0 then
  redis.call('zrem', out, unpack(back))
end
if count then
  local is_notified = notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
  local receivers = count > 0 and redis.pcall('publish', channel, count)
  -- As long as there were permits, no client waited.
  if is_notified then
    listeners = -3
  elseif type(receivers) == 'number' and count <= #back then
    listeners = receivers
  end
end
return good == #ids and {'freed', listeners} or {'not_held'}
