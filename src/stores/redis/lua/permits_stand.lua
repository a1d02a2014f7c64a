-- Begins a script that acquires permits for a client, or has it stand in the line for them (see `permits_line.lua`).
--
-- Returns nothing. `may_take` returns whether so many permits would be left that those kept for others are among them;
-- `kept_left_ms` for how long the first of those is kept, or -1; `stand_for_permits` whether the client is the first in the line, or nil if it does not stand in it; `leave_line` ends its
-- place, and passes on what is left
local function may_take(tag, client, turn, left)
  return turn == 'barge' or turn == 'spin' or kept_for_others(tag, client) <= left
end

local function kept_left_ms(tag)
  local first = redis.pcall('zrange', 'leasehold_lock_next:' .. tag, 0, 0, 'WITHSCORES')
  local time = first[2] and redis.pcall('time') or {}
  return time[2] and math.max(first[2] - time[1] * 1000 - math.floor(time[2] / 1000), 0) or -1
end

local function stand_for_permits(tag, client, argument, waited_ms, count)
  local turn, link = turn_of(argument)
  if turn ~= 'wait' and turn ~= 'stand' and turn ~= 'next' then
    return nil
  end
  redis.pcall('zrem', 'leasehold_lock_next:' .. tag, client)
  local is_first = stand(tag, client, link, waited_ms)
  if count > 0 then
    -- Too few for it: those behind it may want fewer. Those before it were asked.
    local place = redis.pcall('zrank', 'leasehold_lock_line:' .. tag, client)
    tell_permits(tag, count, type(place) == 'number' and place + 1 or 0)
  end
  return is_first
end

local function leave_line(tag, client, argument, count)
  local turn = turn_of(argument)
  local line, next_key = 'leasehold_lock_line:' .. tag, 'leasehold_lock_next:' .. tag
  if redis.pcall('exists', line, next_key) == 0 then
    return
  end
  if turn ~= 'barge' and turn ~= 'spin' then
    -- Another thread of the client may have been told.
    redis.pcall('zrem', next_key, client)
  end
  if turn == 'stand' or turn == 'next' then
    redis.pcall('zrem', line, client)
  end
  tell_permits(tag, count)
end
