-- Replaces the mark of a ring's node. A mark is the version of the ring that the node last accepted.
--
-- KEYS[1] mark_key   the key in which the node stores its mark
-- ARGV[1] expected   the mark to replace; '': the node has no mark
-- ARGV[2] new        the mark to store
--
-- Returns {'marked'}        the node has the new mark
--         {'other', mark}   the node has a third mark, neither the new nor the expected one; nothing changed
local mark_key = KEYS[1]
local expected, new = ARGV[1], ARGV[2]

local stored = redis.call('get', mark_key) or ''
if stored == new then
  return {'marked'}
end
if stored ~= expected then
  return {'other', stored}
end
redis.call('set', mark_key, new)
return {'marked'}
