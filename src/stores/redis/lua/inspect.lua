-- Shows the state of a lock.
--
-- KEYS[1] lock    the lock's hash: owner -> hold count
-- ARGV[1] owner   whose hold count is shown
--
-- Returns {'free'}                          nobody holds it
--         {'held', ttl_ms, count, holder}   ttl -1: for ever; count '0': the owner does not hold it;
--                                           holder '': the user may not HKEYS
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
