-- Counts permits: the free ones, the acquired ones, or both. First takes back the permits whose leases have ended.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] acquired   id of an acquired permit -> when its lease ends
-- ARGV[1] channel    the channel on which waiters listen
-- ARGV[2] which      'free', 'out' (acquired) or 'all'
--
-- Returns {'count', number}   the number of these permits
--         {'none'}            the semaphore is not set up
local permits, acquired = KEYS[1], KEYS[2]
local channel, which = ARGV[1], ARGV[2]

redis.call('get', permits) -- if the key has another type, the script fails here, before it has written anything
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- This write changes nothing, but fails here, before any change, if the user may not run the command.
redis.call('zremrangebyscore', acquired, 1, 0)
local back = redis.call('zcount', acquired, 0, now_ms)
if back > 0 then
  -- Without GET, INCRBY would recreate a deleted semaphore.
  local count = redis.call('get', permits) and redis.call('incrby', permits, back) or 0
  redis.call('zremrangebyscore', acquired, 0, now_ms)
  if count > 0 then
    notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
    redis.pcall('publish', channel, count)
  end
end
local are_out = which ~= 'free' and redis.call('zcard', acquired) or 0
if which == 'out' then
  return {'count', are_out}
end
local count = redis.call('get', permits)
return count and {'count', tonumber(count) + are_out} or {'none'}
