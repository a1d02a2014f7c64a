-- Frees a token lock, if the token is the owner's.
--
-- KEYS[1] lock    the lock's string: its owner's token
-- ARGV[1] token   who releases
--
-- Returns {'freed'}              it was the owner's and is free now
--         {'not_held'}           nobody holds it
--         {'not_held', holder}   another holds it
local lock, token = KEYS[1], ARGV[1]

local holder = redis.call('get', lock)
if holder == token then
  redis.call('del', lock)
  return {'freed'}
end
if holder then
  return {'not_held', holder}
end
-- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
redis.call('del', lock)
return {'not_held'}
