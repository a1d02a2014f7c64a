-- Adds a waiter to a condition, removes a waiter, or notifies waiters.
--
-- KEYS[1] queue        the waiters, in order of arrival
-- KEYS[2] heartbeats   until when each waiter counts as alive
-- KEYS[3] notified     waiters that were notified and have not read the notification -> until when each counts as alive
-- ARGV[1] what         'enlist': the waiter joins; 'leave': the waiter leaves; 'one' or 'all': notifies so many waiters
-- ARGV[2] waiter       the waiter that joins or leaves
-- ARGV[3] alive_ms     how long a place lasts after the waiter's last call
-- ARGV[4] channels     prefix of the waiters' channels; the waiter's id follows
--
-- Returns {'count', number}   how many waiters were notified
local queue, heartbeats, notified = KEYS[1], KEYS[2], KEYS[3]
local what, waiter, alive_ms, channels = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function keep_ends()
  for _, key in ipairs(KEYS) do
    redis.call('pexpire', key, alive_ms * 10)
  end
end
-- If a key has another type, or the user may not PEXPIRE, the script fails here, before it has changed anything.
redis.call('llen', queue)
redis.call('zscore', heartbeats, waiter)
redis.call('zscore', notified, waiter)
keep_ends()
local most = 0
if what == 'enlist' then
  if redis.call('zadd', heartbeats, now_ms + alive_ms, waiter) == 1 then
    redis.call('pexpire', heartbeats, alive_ms * 10)
    redis.call('rpush', queue, waiter)
  end
elseif what == 'leave' then
  redis.call('lrem', queue, 0, waiter)
  redis.call('zrem', heartbeats, waiter)
  -- If the waiter was notified and has not read the notification, the next waiter receives it.
  most = redis.call('zrem', notified, waiter)
elseif what == 'one' then
  most = 1
else
  most = redis.call('llen', queue)
end

local count = 0
while count < most do
  local next = redis.call('lpop', queue)
  if not next then
    break
  end
  local is_alive = (tonumber(redis.call('zscore', heartbeats, next)) or 0) > now_ms
  redis.call('zrem', heartbeats, next)
  if is_alive then
    redis.call('zadd', notified, now_ms + alive_ms, next)
    redis.pcall('publish', channels .. next, '0')
    count = count + 1
  end
end
keep_ends()
return {'count', count}
