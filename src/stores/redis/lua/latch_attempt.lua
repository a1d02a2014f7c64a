-- Reads whether a latch is open: its count is zero or absent.
--
-- KEYS[1] latch   how many times the latch must still be counted down
--
-- Returns {'granted'}     the latch is open
--         {'busy', -1}    the latch is shut
local latch = KEYS[1]

local count = redis.call('get', latch)
if count and tonumber(count) > 0 then
  return {'busy', -1}
end
if not count then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can answer.
  redis.call('hdel', latch, '')
end
return {'granted'}
