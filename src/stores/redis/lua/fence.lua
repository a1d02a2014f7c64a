-- Prefix of scripts that issue fencing tokens from a counter.
--
-- A fence is one more than the last, and at least the server's time in microseconds: so a counter that was lost continues
-- above all it issued before.
--
-- Defines `next_fence`: the fence as text; raises if the counter cannot be used
local function next_fence(counter, time)
  local number = redis.call('incr', counter)
  time = time or redis.call('time')
  local now_us = time[1] * 1000000 + time[2]
  if number >= now_us then
    return redis.call('get', counter)
  end
  -- %.0f: joining a Lua number to a string loses its last digits.
  local fence = string.format('%.0f', now_us)
  redis.call('set', counter, fence)
  return fence
end
