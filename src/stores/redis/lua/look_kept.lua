-- Looks whether others want a lock that its client keeps until they ask for it: those who send no recall, or whose recall was
-- lost. Has it run for a lease from now on.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:kept -> since when nobody has used it, in ms since 1970;
--                    '': it is in use; absent: it was recalled, by one who stands in the line or has given up
-- ARGV[1] owner      who holds it
-- ARGV[2] lease_ms   how long it shall run; at least, if it is in use
-- ARGV[3] idle_ms    for how long nobody has used it; '': it is in use, or was a moment ago
-- ARGV[4] channel    where others listen for its release: Redisson's waiters, and the first in the line, in case its recall
--                    was lost
-- ARGV[5] own        how many of those are this client
--
-- Returns {'stays'}    nobody else wants it
--         {'wanted'}   others do, or the user may not see whether they do
--         {'lost'}     the owner does not hold it
local lock = KEYS[1]
local owner, lease_ms, idle_ms, channel, own = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

if not prolong(lock, owner, lease_ms) then
  return {'lost'}
end
if idle_ms then
  redis.call('pexpire', lock, lease_ms)
end
-- Nobody listens to a sharded channel on a server that knows none.
local plain, sharded = redis.pcall('pubsub', 'numsub', channel), redis.pcall('pubsub', 'shardnumsub', channel)
local others = (plain[2] or own + 1) + (sharded[2] or 0) - own
if others > 0 then
  return {'wanted'}
end
local since = ''
if idle_ms then
  local time = redis.call('time')
  since = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) - idle_ms)
end
redis.pcall('hset', lock, 'leasehold:kept', since)
return {'stays'}
