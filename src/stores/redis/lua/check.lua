-- Reads whether a lock of any kind is held, and the last fence that was issued for the lock.
--
-- KEYS[1] lock      the lock's key
-- KEYS[2] counter   the lock's fence counter; left out if no fence is wanted
--
-- Returns {'free', fence}    fence '0': no fence was issued
--         {'busy', ttl_ms}   the lock is held; -1: for ever
local lock, counter = KEYS[1], KEYS[2]

local ttl_ms = redis.call('pttl', lock)
if ttl_ms ~= -2 then
  return {'busy', ttl_ms}
end
return {'free', counter and redis.call('get', counter) or '0'}
