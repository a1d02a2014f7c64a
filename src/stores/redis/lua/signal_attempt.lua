-- Consumes the notification of a condition's waiter. Without a notification, keeps the waiter's place alive.
--
-- KEYS[1] queue        the waiters, in order of arrival
-- KEYS[2] heartbeats   until when each waiter counts as alive
-- KEYS[3] notified     waiters that were notified and have not read the notification -> until when each counts as alive
-- ARGV[1] waiter       the waiter that calls
-- ARGV[2] alive_ms     how long a place lasts after the waiter's last call
-- ARGV[3] channels     prefix of the waiters' channels; the waiter's id follows
--
-- Returns {'granted'}     the waiter was notified; or it was removed as dead, and wakes up without a notification
--         {'busy', -1}    the waiter still waits
local queue, heartbeats, notified = KEYS[1], KEYS[2], KEYS[3]
local waiter, alive_ms, channels = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- If a key has another type, or the user may not PEXPIRE, the script fails here, before it has changed anything.
redis.call('llen', queue)
redis.call('zscore', heartbeats, waiter)
redis.call('pexpire', notified, alive_ms * 10)
-- A dead waiter's notification passes to the next living one.
for _, dead in ipairs(redis.call('zrangebyscore', notified, 0, now_ms)) do
  redis.call('zrem', notified, dead)
  local next = redis.call('lpop', queue)
  while next and (tonumber(redis.call('zscore', heartbeats, next)) or 0) <= now_ms do
    redis.call('zrem', heartbeats, next)
    next = redis.call('lpop', queue)
  end
  if next then
    redis.call('zrem', heartbeats, next)
    redis.call('zadd', notified, now_ms + alive_ms, next)
    redis.pcall('publish', channels .. next, '0')
  end
end
-- Sets each key's expiry again, since passing a notification on may have created a key.
for _, key in ipairs(KEYS) do
  redis.call('pexpire', key, alive_ms * 10)
end
if redis.call('zrem', notified, waiter) == 1 then
  return {'granted'}
end
if not redis.call('zscore', heartbeats, waiter) then
  return {'granted'}
end
redis.call('zadd', heartbeats, now_ms + alive_ms, waiter)
return {'busy', -1}
