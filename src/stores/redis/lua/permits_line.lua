-- Begins a script on the permits of a semaphore, for which clients wait in a line (see `line.lua`).
--
-- Whoever changes the number of permits notifies as many clients as there are permits that are kept for nobody, first
-- come first, and keeps one for each: `leasehold_lock_next:{name}` is a sorted set, client -> until when, by the
-- server's clock in milliseconds. A client that wants more permits than there are passes its own on.
--
-- Returns nothing. `kept_for_others` returns how many permits are kept for other clients than this; `tell_permits` whether
-- it notified a client that there are so many permits: the first in the line, or the first behind so many
local function kept_for_others(tag, client)
  local next_key = 'leasehold_lock_next:' .. tag
  local others = redis.pcall('zcard', next_key)
  if type(others) ~= 'number' or others == 0 then
    return 0
  end
  local time = redis.pcall('time')
  if time.err then
    return 0
  end
  redis.pcall('zremrangebyscore', next_key, 0, time[1] * 1000 + math.floor(time[2] / 1000))
  others = redis.pcall('zcard', next_key)
  others = type(others) == 'number' and others or 0
  return client and redis.pcall('zscore', next_key, client) and others - 1 or others
end

local function tell_permits(tag, count, behind)
  local line, next_key = 'leasehold_lock_line:' .. tag, 'leasehold_lock_next:' .. tag
  local is_told = false
  if count <= 0 or redis.pcall('exists', line) ~= 1 then
    return false
  end
  local left, time = count - kept_for_others(tag), redis.pcall('time')
  -- The dead whom nobody has taken out are passed over, up to a thousand.
  for _ = 1, time.err and 0 or 1024 do
    local first = left > 0 and redis.pcall('zrange', line, behind or 0, behind or 0, 'WITHSCORES') or {}
    local client = first[1]
    if not client or redis.pcall('zrem', line, client) ~= 1 then
      break
    end
    local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. client, 'next')
    if type(receivers) ~= 'number' then
      redis.pcall('zadd', line, first[2], client)
      redis.pcall('pexpire', line, 60000)
      break
    end
    if receivers > 0 then
      local lasts_ms = 10 * 2 ^ math.min(math.floor(first[2] % 1000 / 100), 6)
      local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + lasts_ms
      redis.pcall('zadd', next_key, until_ms, client)
      if redis.pcall('pexpire', next_key, 1000) ~= 1 then
        redis.pcall('del', next_key)
      end
      left, is_told = left - 1, true
    end
  end
  local others = redis.pcall('zrange', line, 0, 8)
  if is_told and #others <= 8 then
    for at = 1, #others do
      -- The first of them who lives.
      if redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. others[at], 'standby') ~= 0 then
        break
      end
    end
  end
  return is_told
end
