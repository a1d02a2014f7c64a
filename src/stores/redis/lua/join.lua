-- Functions for scripts in which a client joins a wait queue (see `wait_queue.lua`), or stays in the queue.
--
-- A client in the queue attempts at least every 1.2 s. A client that has not attempted for 5 s counts as dead, and joins
-- again if it comes back. Scores contain seconds modulo 100, so an age above 50 s means a time in the future: the clock of
-- the primary before a failover may have been ahead. Such a client does not count as dead.
--
-- Defines `is_dead`: whether the client with this score is dead; `place_score`: the score of a client in the queue;
-- `drop_dead`: removes the dead among the first thousand clients, and returns the first living one
local function is_dead(score, now_s)
  local ago_s = (now_s - score) % 100
  return ago_s > 5 and ago_s <= 50
end

local function place_score(joined, link, now_s)
  return string.format('%.0f', joined - joined % 1000 + link * 100 + now_s % 100)
end

local function drop_dead(queue, now_s)
  local standing = redis.pcall('zrange', queue, 0, 999, 'WITHSCORES')
  local dead, first = {}, nil
  for at = 1, #standing, 2 do
    if is_dead(standing[at + 1], now_s) then
      dead[#dead + 1] = standing[at]
    else
      first = first or standing[at]
    end
  end
  if dead[1] then
    redis.pcall('zrem', queue, unpack(dead))
  end
  return first
end
