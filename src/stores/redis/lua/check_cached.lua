-- Checks whether other clients want a lock that its holder's client caches until a recall (see `recall.lua`). Changes
-- nothing.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; has the field leasehold:cached until a waiter has sent a recall
-- ARGV[1] owner      the owner that holds the lock
-- ARGV[2] channel    the lock's release channel; its listeners count, since Redisson's waiters send no recall
-- ARGV[3] own        how many of the channel's listeners belong to this client
--
-- Returns {'stays'}    no other client wants the lock
--         {'wanted'}   others want the lock, or the user has no right to count the listeners
--         {'lost'}     the owner does not hold the lock
local lock, owner, channel, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('hexists', lock, owner) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
local is_recalled = redis.call('hexists', lock, 'leasehold:cached') == 0
-- A server without sharded channels answers SHARDNUMSUB with an error, which counts as no listeners.
local plain, sharded = redis.pcall('pubsub', 'numsub', channel), redis.pcall('pubsub', 'shardnumsub', channel)
local others = (plain[2] or own + 1) + (sharded[2] or 0) - own
return {(others > 0 or is_recalled) and 'wanted' or 'stays'}
