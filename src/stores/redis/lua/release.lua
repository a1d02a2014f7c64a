-- Sets an owner's hold count to `left`; 0: frees the lock and notifies the waiters.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about and leasehold:cached -> see `show.lua`
-- ARGV[1] owner      who releases
-- ARGV[2] left       the hold count that shall remain
-- ARGV[3] lease_ms   how long it runs if it has lost its end
-- ARGV[4] said       '1': the hash may have our notes beside the owner
-- ARGV[5] channel    where waiters listen
--
-- Returns 'freed'                the owner holds nothing now, and nobody listened
--         {'freed', listeners}   the owner holds nothing now; -1 listeners: the user may not PUBLISH; -3: the first in
--                                the wait queue was notified (see `wait_queue.lua`)
--         {'freed', listeners, 'denied'}   the same, but the user may not notify the queue
--         {'still_held'}         the owner holds it with that count, for as long as before
--         {'not_held'}           nobody holds it
--         {'not_held', holder}   another holds it; '': the user may not HKEYS
local lock = KEYS[1]
local owner, left, lease_ms, said, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if is_freed then
  local is_notified, is_unnotified = notify_next(lock, true, first)
  local listeners = redis.pcall('publish', channel, '0')
  if is_notified then
    return {'freed', -3}
  end
  listeners = type(listeners) == 'number' and listeners or -1
  return {'freed', listeners, is_unnotified and 'denied' or nil}
elseif left ~= '0' and redis.call('hexists', lock, owner) == 1 then
  -- To its own TTL: changes nothing, but lets the count pass when the server is out of memory.
  local ttl_ms = redis.call('pttl', lock)
  if ttl_ms == -1 then
    ttl_ms = tonumber(lease_ms)
  end
  redis.call('pexpire', lock, math.max(ttl_ms, 1))
  redis.call('hset', lock, owner, left)
  return {'still_held'}
elseif left ~= '0' then
  redis.call('hdel', lock, owner) -- as in `free.lua`
end

if redis.call('pttl', lock) == -2 then
  return {'not_held'}
end
for _, holder in ipairs(redis.pcall('hkeys', lock)) do
  if holder:sub(1, 10) ~= 'leasehold:' then
    return {'not_held', holder}
  end
end
return {'not_held', ''}
