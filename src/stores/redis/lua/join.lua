-- Begins a script that has a client join a line of waiting clients (see `line.lua`), or stay in it.
--
-- A client in line asks each 1.2 s at the latest. One that has not asked for 5 s counts as dead: if it comes
-- back, it joins anew. A second that is ahead of the clock is no sign of death: another server's clock was
-- ahead.
--
-- Returns nothing; the functions return whether a place with this score is a dead client's; the score of a place; and, with
-- the dead among the first thousand taken out, who is the first then
local function is_dead(score, now_s)
  local ago_s = (now_s - score) % 100
  return ago_s > 5 and ago_s <= 50
end

local function place_score(joined, link, now_s)
  return string.format('%.0f', joined - joined % 1000 + link * 100 + now_s % 100)
end

local function drop_dead(line, now_s)
  local standing = redis.pcall('zrange', line, 0, 999, 'WITHSCORES')
  local dead, first = {}, nil
  for at = 1, #standing, 2 do
    if is_dead(standing[at + 1], now_s) then
      dead[#dead + 1] = standing[at]
    else
      first = first or standing[at]
    end
  end
  if dead[1] then
    redis.pcall('zrem', line, unpack(dead))
  end
  return first
end
