-- Has the owners of several locks hold nothing, and tells the waiters of those that are free then.
--
-- KEYS[at]       lock      the hash of each lock: owner -> hold count
-- ARGV[2*at-1]   owner     who releases it
-- ARGV[2*at]     channel   where its waiters listen
--
-- Returns {'freed', listeners, ...}   for each lock; -1: the user may not PUBLISH; -2: the owner did not hold
--                                   it; -3: the first in its line was told (see `line.lua`)
--         {'freed', listeners, ..., 'unlined'}   the same, but the user may not tell a line
local replies, is_unlined = {'freed'}, false
for at = 1, #KEYS do
  local lock, owner, channel = KEYS[at], ARGV[2*at-1], ARGV[2*at]
  local listeners = -2
  -- A right that is missing for one is missing for the first, before anything was freed; a key that is no
  -- lock is not held.
  local removed = at == 1 and redis.call('hdel', lock, owner) or redis.pcall('hdel', lock, owner)
  if removed == 1 then
    -- Our notes on an owner go with the owner, whichever of its requests wrote them: a hash of notes alone is
    -- nobody's, and would keep all others out.
    redis.call('hdel', lock, 'leasehold:about', 'leasehold:kept')
    local is_told, is_denied_here = tell_line(lock, true)
    is_unlined = is_unlined or is_denied_here
    listeners = redis.pcall('publish', channel, '0')
    if is_told then
      listeners = -3
    elseif type(listeners) ~= 'number' then
      listeners = -1
    end
  end
  replies[at + 1] = listeners
end
if is_unlined then
  replies[#replies + 1] = 'unlined'
end
return replies
