-- For a holder of a read-write lock that wants to learn of waiters: makes the next waiter send a recall (see `recall.lua`),
-- and returns whether a waiter has sent one since the holder's last request.
--
-- KEYS[1] lock       the lock's hash: mode -> read or write; reader -> hold count; writer:write -> hold count
-- ARGV[1] field      the holder's field in the hash
-- ARGV[2] lasts_ms   for how long waiters send recalls, unless the holder asks again
--
-- Returns {'wanted'}   a waiter has sent a recall
--         {'stays'}    no waiter has
--         {'lost'}     the owner does not hold the lock
local lock = KEYS[1]
local field, lasts_ms = ARGV[1], tonumber(ARGV[2])

if redis.call('hexists', lock, field) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, field)
  return {'lost'}
end
local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local hearers = 'leasehold_rwlock_hearers:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
local before = redis.pcall('zscore', hearers, field)
redis.pcall('zremrangebyscore', hearers, -now_ms, now_ms)
redis.pcall('zadd', hearers, now_ms + lasts_ms, field)
if redis.pcall('pexpire', hearers, lasts_ms * 2) ~= 1 then
  redis.pcall('zrem', hearers, field)
end
return {type(before) == 'string' and tonumber(before) < 0 and 'wanted' or 'stays'}
