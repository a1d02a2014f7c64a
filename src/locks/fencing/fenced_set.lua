-- Sets a key unless a newer token has set it.
--
-- KEYS[1] data    the key, a string
-- KEYS[2] seen    where the highest token is kept that was seen; in a cluster in the same slot
-- ARGV[1] token   the writer's, in decimal
-- ARGV[2] value   what to set
--
-- Returns 1   it was written
--         0   a newer token had written before; nothing changed
local data, seen = KEYS[1], KEYS[2]
local token, value = ARGV[1], ARGV[2]

-- As text: a Lua number would lose the last digits.
local newest = redis.call('get', seen)
if newest and (#newest > #token or #newest == #token and newest > token) then
  return 0
end
redis.call('set', seen, token)
redis.call('set', data, value)
return 1
