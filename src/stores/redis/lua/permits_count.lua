-- Counts the permits that are free, acquired, or both, after those whose leases have ended have come back.
--
-- KEYS[1] permits    how many there are
-- KEYS[2] out        id -> when its lease ends
-- ARGV[1] channel    where waiters listen
-- ARGV[2] which      'free', 'out' or 'all'
--
-- Returns {'count', number}   so many
--         {'none'}            nobody has set any up
local permits, out = KEYS[1], KEYS[2]
local channel, which = ARGV[1], ARGV[2]

redis.call('get', permits) -- a key of another type raises here, before anything is written
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- Removes nothing; if the command is refused, then before anything is written.
redis.call('zremrangebyscore', out, 1, 0)
local back = redis.call('zcount', out, 0, now_ms)
if back > 0 then
  -- Permits that come back must not recreate a deleted semaphore.
  local count = redis.call('get', permits) and redis.call('incrby', permits, back) or 0
  redis.call('zremrangebyscore', out, 0, now_ms)
  if count > 0 then
    notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
    redis.pcall('publish', channel, count)
  end
end
local are_out = which ~= 'free' and redis.call('zcard', out) or 0
if which == 'out' then
  return {'count', are_out}
end
local count = redis.call('get', permits)
return count and {'count', tonumber(count) + are_out} or {'none'}
