-- Begins a script that has a client stand in the line (see `line.lua`) for what several may have: the writers of a
-- read-write lock, or permits. A place counts from when its client's thread began to wait, so one that was notified in
-- vain stands where it stood.
--
-- Returns nothing. `stand` returns whether the client is the first in the line; nil: it does not stand in it. `turn_of`
-- returns the word and the link that an argument says
local function turn_of(argument)
  local link = tonumber(argument:sub(-1))
  return link and argument:sub(1, -2) or argument, link or 0
end

local function stand(tag, client, link, waited_ms)
  local line = 'leasehold_lock_line:' .. tag
  local time = redis.pcall('time')
  if time.err then
    return nil
  end
  local place = tonumber(redis.pcall('zscore', line, client))
  local joined = place or (time[1] - 1700000000) * 10000000 + time[2] * 10 - waited_ms * 10000
  local added = redis.pcall('zadd', line, place_score(joined, link, time[1]), client)
  if type(added) ~= 'number' or redis.pcall('pexpire', line, 60000) ~= 1 then
    redis.pcall('zrem', line, client)
    return nil
  end
  local first = redis.pcall('zrange', line, 0, 0, 'WITHSCORES')
  if first[2] and is_dead(first[2], time[1]) then
    first[1] = drop_dead(line, time[1])
  end
  return first[1] == client
end
