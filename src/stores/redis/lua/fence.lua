-- Begins a script that gives out fences: the function that draws the next one from a counter.
--
-- A fence is one more than the last, and at least the server's time in microseconds: a counter that was lost
-- goes on above what it gave out before.
--
-- Returns nothing; the function returns the fence as text, and raises if the counter cannot be used
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
