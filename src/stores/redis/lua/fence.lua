-- Functions for scripts that issue fencing tokens ("fences") from a counter.
--
-- A new fence is at least the last one plus one, and at least the server's time in microseconds. If the counter is lost,
-- new fences are still larger than all earlier ones, unless the clock was set back.
--
-- Defines `next_fence`: returns the fence as text; raises an error if the counter is unusable
local function next_fence(counter, time)
  local number = redis.call('incr', counter)
  time = time or redis.call('time')
  local now_us = time[1] * 1000000 + time[2]
  if number >= now_us then
    return redis.call('get', counter)
  end
  -- Formats by %.0f, since the `..` operator would round a number of this size.
  local fence = string.format('%.0f', now_us)
  redis.call('set', counter, fence)
  return fence
end
