-- Replaces the mark that a ring's node stores.
--
-- KEYS[1] bearer     where the node keeps the mark of the newest ring that it has heard of
-- ARGV[1] expected   the mark that is to be replaced; '': none
-- ARGV[2] new        the mark to bear from now on
--
-- Returns {'marked'}        the node bears the new mark
--         {'other', mark}   it bears neither the new nor the expected one; nothing changed
local bearer = KEYS[1]
local expected, new = ARGV[1], ARGV[2]

local borne = redis.call('get', bearer) or ''
if borne == new then
  return {'marked'}
end
if borne ~= expected then
  return {'other', borne}
end
redis.call('set', bearer, new)
return {'marked'}
