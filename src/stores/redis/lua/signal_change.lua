-- Adds a waiter to a condition, removes one, or notifies some.
--
-- KEYS[1] queue        the waiters, in order of arrival
-- KEYS[2] heartbeats   until when each of them counts as alive
-- KEYS[3] notified     who was notified and has not noticed -> until when it counts as alive
-- ARGV[1] what         'enlist', 'leave', 'one' or 'all'
-- ARGV[2] waiter       who joins or leaves
-- ARGV[3] alive_ms     how long a place lasts without being asked for again
-- ARGV[4] channels     each waiter listens on this and its id
--
-- Returns {'count', number}   how many were notified
local queue, heartbeats, notified = KEYS[1], KEYS[2], KEYS[3]
local what, waiter, alive_ms, channels = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function keep_ends()
  for _, key in ipairs(KEYS) do
    redis.call('pexpire', key, alive_ms * 10)
  end
end
-- A key of another type, or a user without the right to PEXPIRE, raises here, before anything is written.
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
  -- A notification that the waiter had not noticed passes to the next one.
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
