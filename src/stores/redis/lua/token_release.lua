-- Frees a token lock if it contains the caller's token.
--
-- KEYS[1] lock    the lock's string: its owner's token
-- ARGV[1] token   the token of the owner that releases
--
-- Returns {'freed'}              the owner held the lock, which is free now
--         {'not_held'}           no owner holds the lock
--         {'not_held', holder}   another owner holds the lock
local lock, token = KEYS[1], ARGV[1]

local holder = redis.call('get', lock)
if holder == token then
  redis.call('del', lock)
  return {'freed'}
end
if holder then
  return {'not_held', holder}
end
-- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
redis.call('del', lock)
return {'not_held'}
