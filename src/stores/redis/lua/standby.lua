-- Prefix of scripts that have a client of a wait queue (see `wait_queue.lua`) ask soon, should the one before it hang.
--
-- Defines `stand_by`: sends 'standby' to the first client that is alive; with `if_short` only in a queue below nine
local function stand_by(tag, if_short)
  local waiting = redis.pcall('zrange', 'leasehold_lock_queue:' .. tag, 0, 8)
  for at = 1, if_short and #waiting > 8 and 0 or #waiting do
    if redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. waiting[at], 'standby') ~= 0 then
      break
    end
  end
end
