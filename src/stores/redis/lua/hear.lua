-- Marks a lock so that the next client that waits recalls it (see `acquire.lua`), and returns whether any wait already.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:cached -> '': nobody has recalled it
-- ARGV[1] owner      who holds it
-- ARGV[2] channel    where others listen for its release: Redisson's waiters, who send no recall
-- ARGV[3] own        how many of those are this client
--
-- Returns {'wanted'}     others wait for it
--         {'unmarked'}   none are seen, and no recall would have been sent up to now
--         {'stays'}      none are seen
--         {'lost'}       the owner does not hold it
local lock, owner, channel, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('hexists', lock, owner) == 0 then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
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
-- A server without sharded channels has no listeners on them. If the user may not ask, no listener is seen.
local plain, sharded = redis.pcall('pubsub', 'numsub', channel), redis.pcall('pubsub', 'shardnumsub', channel)
is_wanted = is_wanted or (plain[2] or own) + (sharded[2] or 0) > own
-- The hash has an expiry and an owner already. If memory is out, there is no mark, and only these checks see waiters.
local is_new = redis.pcall('hset', lock, 'leasehold:cached', '') == 1
return {is_wanted and 'wanted' or is_new and 'unmarked' or 'stays'}
