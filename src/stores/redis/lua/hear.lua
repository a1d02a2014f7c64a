-- For a holder that wants to learn of waiters: makes the next waiting client send a recall (see `recall.lua`), and returns
-- whether other clients wait already.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; has the field leasehold:cached until a waiter has sent a recall
-- ARGV[1] owner      the owner that holds the lock
-- ARGV[2] channel    the lock's release channel; its listeners count, since Redisson's waiters send no recall
-- ARGV[3] own        how many of the channel's listeners belong to this client
--
-- Returns {'wanted'}     other clients wait for the lock
--         {'unmarked'}   no waiters are known, but the field leasehold:cached was missing: this is the first check, or a
--                        waiter has sent a recall since the last check, and removed the field
--         {'stays'}      no waiters are known, and the field was there already
--         {'lost'}       the owner does not hold the lock
local lock, owner, channel, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('hexists', lock, owner) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local time = redis.call('time')
local queue = redis.pcall('zrange', 'leasehold_lock_queue:' .. tag, 0, 15, 'WITHSCORES')
local is_wanted = false
for at = 1, #queue, 2 do
  is_wanted = is_wanted or queue[at] ~= owner:sub(1, 36) and not is_dead(queue[at + 1], time[1])
end
-- A server without sharded channels, or a user without the right to PUBSUB, gets an error here, which counts as no
-- listeners of other clients.
local plain, sharded = redis.pcall('pubsub', 'numsub', channel), redis.pcall('pubsub', 'shardnumsub', channel)
is_wanted = is_wanted or (plain[2] or own) + (sharded[2] or 0) > own
-- HSET keeps the hash's expiry. If HSET fails for lack of memory, the holder learns of waiters by its later checks.
local is_new = redis.pcall('hset', lock, 'leasehold:cached', '') == 1
return {is_wanted and 'wanted' or is_new and 'unmarked' or 'stays'}
