-- Frees a lock whoever holds it, and tells the waiters: the first in the line (see `line.lua`), and those who
-- listen.
--
-- KEYS[1] lock      the lock's hash: owner -> hold count
-- ARGV[1] channel   where waiters listen
--
-- Returns {'freed'}    it was held
--         {'free'}     nobody held it
--         {'no_lock'}  the hash is something else; nothing changed
local lock, channel = KEYS[1], ARGV[1]

if redis.call('pttl', lock) ~= -2 and not is_lock(lock) then
  return {'no_lock'}
end
if redis.call('del', lock) == 0 then
  return {'free'}
end
tell_line(lock, true)
redis.pcall('publish', channel, '0')
return {'freed'}
