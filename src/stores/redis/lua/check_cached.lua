-- Checks whether others want a lock that its client caches until a recall. Changes nothing.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:cached -> '': nobody has recalled it
-- ARGV[1] owner      who holds it
-- ARGV[2] channel    where others listen for its release: Redisson's waiters, who send no recall
-- ARGV[3] own        how many of those are this client
--
-- Returns {'stays'}    nobody else wants it
--         {'wanted'}   others do, or the user may not see whether they do
--         {'lost'}     the owner does not hold it
local lock, owner, channel, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('hexists', lock, owner) == 0 then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
local is_recalled = redis.call('hexists', lock, 'leasehold:cached') == 0
-- A server without sharded channels has no listeners on them.
local plain, sharded = redis.pcall('pubsub', 'numsub', channel), redis.pcall('pubsub', 'shardnumsub', channel)
local others = (plain[2] or own + 1) + (sharded[2] or 0) - own
return {(others > 0 or is_recalled) and 'wanted' or 'stays'}
