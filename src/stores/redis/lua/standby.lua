-- Functions for scripts that wake a second client in a wait queue (see `wait_queue.lua`), in case the first one hangs.
--
-- Defines `stand_by`: sends 'standby' to the first queued client that listens, which then attempts 25 ms later. With
--         `if_short`, only if at most eight clients are in the queue
local function stand_by(tag, if_short)
  local waiting = redis.pcall('zrange', 'leasehold_lock_queue:' .. tag, 0, 8)
  for at = 1, if_short and #waiting > 8 and 0 or #waiting do
    if redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. waiting[at], 'standby') ~= 0 then
      break
    end
  end
end
