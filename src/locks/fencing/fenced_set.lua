-- Sets a key unless a newer fencing token has set it before.
--
-- KEYS[1] data    the key to set, a string
-- KEYS[2] seen    the key that stores the highest token so far; in a cluster, in the same slot as `data`
-- ARGV[1] token   the writer's token, in decimal
-- ARGV[2] value   the value to set
--
-- Returns 1   the value was written
--         0   a newer token had written before; nothing changed
local data, seen = KEYS[1], KEYS[2]
local token, value = ARGV[1], ARGV[2]

-- Compares the tokens as text, since a Lua number would lose the last digits of a large token.
local newest = redis.call('get', seen)
if newest and (#newest > #token or #newest == #token and newest > token) then
  return 0
end
redis.call('set', seen, token)
redis.call('set', data, value)
return 1
