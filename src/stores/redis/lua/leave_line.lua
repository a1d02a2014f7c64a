-- Takes a client out of a lock's line (see `line.lua`), and passes on what was kept for it.
--
-- KEYS[1] lock     the lock's hash
-- ARGV[1] client   who waits no more
--
-- Returns {'left'}
local lock, client = KEYS[1], ARGV[1]

local removed = redis.pcall('zrem', line_of(lock), client)
if redis.pcall('get', next_of(lock)) == client then
  redis.pcall('del', next_of(lock))
  if redis.call('exists', lock) == 0 then
    tell_next(lock)
  end
elseif removed == 1 then
  prepare_next(lock, line_of(lock))
end
return {'left'}
