-- For a holder that wants to learn of waiters: makes the next waiter send a recall (see `recall.lua`), and returns whether
-- others wait already.
--
-- KEYS[1] lock         the lock's hash: owner -> hold count; has the field leasehold:cached until a waiter has sent a recall
-- KEYS[2] queue        the waiters, in order of arrival
-- KEYS[3] timeouts     until when Redisson considers each waiter alive
-- KEYS[4] heartbeats   until when each waiter of this crate counts as alive
-- ARGV[1] owner        the owner that holds the lock
--
-- Returns what `hear.lua` returns
local lock, queue, timeouts, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner = ARGV[1]

if redis.call('hexists', lock, owner) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_wanted = false
for _, waiter in ipairs(redis.call('lrange', queue, 0, 15)) do
  local until_ms = redis.call('zscore', heartbeats, waiter) or redis.call('zscore', timeouts, waiter)
  is_wanted = is_wanted or tonumber(until_ms or 0) > now_ms
end
-- HSET keeps the hash's expiry. If HSET fails for lack of memory, the holder learns of waiters by its later checks.
local is_new = redis.pcall('hset', lock, 'leasehold:cached', '') == 1
return {is_wanted and 'wanted' or is_new and 'unmarked' or 'stays'}
