-- Shows the state of a lock.
--
-- KEYS[1] lock    the lock's hash: owner -> hold count
-- ARGV[1] owner   the owner whose hold count is shown
--
-- Returns {'free'}                          no owner holds the lock
--         {'held', ttl_ms, count, holder}   ttl_ms -1: for ever; count '0': `owner` does not hold the lock; holder '': the
--                                           user has no right to HKEYS
local lock, owner = KEYS[1], ARGV[1]

local count = redis.call('hget', lock, owner)
local ttl_ms = redis.call('pttl', lock)
if ttl_ms == -2 then
  return {'free'}
end
if count then
  return {'held', ttl_ms, count, owner}
end
for _, holder in ipairs(redis.pcall('hkeys', lock)) do
  if holder:sub(1, 10) ~= 'leasehold:' then
    return {'held', ttl_ms, '0', holder}
  end
end
return {'held', ttl_ms, '0', ''}
