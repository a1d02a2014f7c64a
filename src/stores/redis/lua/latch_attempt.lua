-- Asks whether a latch is open.
--
-- KEYS[1] latch   how many are still to count down
--
-- Returns {'granted'}     it is open
--         {'busy', -1}    it is shut
local latch = KEYS[1]

local count = redis.call('get', latch)
if count and tonumber(count) > 0 then
  return {'busy', -1}
end
if not count then
  -- Removes nothing, but a replica refuses it: an answer of a replica does not count.
  redis.call('hdel', latch, '')
end
return {'granted'}
