-- Leaves an owner so many holds; none: frees the lock and tells the waiters.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count
-- KEYS[2] channel    where waiters listen
-- ARGV[1] owner      who releases
-- ARGV[2] left       the hold count that shall remain
-- ARGV[3] lease_ms   how long it runs if it has lost its end
--
-- Returns {'freed', listeners}   the owner holds nothing now; -1 listeners: the user may not PUBLISH
--         {'still_held'}         the owner holds it with that count, for as long as before
--         {'not_held'}           nobody holds it
--         {'not_held', holder}   another holds it; '': the user may not HKEYS
local lock, channel = KEYS[1], KEYS[2]
local owner, left, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('hexists', lock, owner) == 0 then
  -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
  redis.call('hdel', lock, owner)
  if redis.call('pttl', lock) == -2 then
    return {'not_held'}
  end
  local holders = redis.pcall('hkeys', lock)
  return {'not_held', holders[1] or ''}
end

if left == '0' then
  redis.call('del', lock)
  local listeners = redis.pcall('publish', channel, '0')
  if type(listeners) ~= 'number' then
    listeners = -1
  end
  return {'freed', listeners}
end

-- To its own TTL: changes nothing, but lets the count pass when the server is out of memory.
local ttl_ms = redis.call('pttl', lock)
if ttl_ms == -1 then
  ttl_ms = lease_ms
end
redis.call('pexpire', lock, math.max(ttl_ms, 1))
redis.call('hset', lock, owner, left)
return {'still_held'}
