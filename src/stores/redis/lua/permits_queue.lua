-- Functions for scripts on a semaphore's permits, for which clients wait in a queue (see `wait_queue.lua`).
--
-- A request that changes the number of permits notifies as many clients as there are unreserved permits, in order of
-- arrival, and reserves one permit for each. A notified client that needs more permits than there are passes its
-- reservation on. Here `leasehold_lock_next:{name}` is a sorted set: client -> when its reservation ends, by the server's
-- clock in milliseconds.
--
-- Defines `reserved_for_others`: returns how many permits are reserved for clients other than this one
--         `notify_for_permits`: notifies queued clients that `count` permits are free, except the first `skipped` clients;
--         returns whether any client listened
local function reserved_for_others(tag, client)
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

local function notify_for_permits(tag, count, skipped)
  local queue, next_key = 'leasehold_lock_queue:' .. tag, 'leasehold_lock_next:' .. tag
  local is_notified = false
  if count <= 0 or redis.pcall('exists', queue) ~= 1 then
    return false
  end
  local left, time = count - reserved_for_others(tag), redis.pcall('time')
  -- Handles at most 1024 clients, to save time. A client that does not listen loses its place.
  for _ = 1, time.err and 0 or 1024 do
    local first = left > 0 and redis.pcall('zrange', queue, skipped or 0, skipped or 0, 'WITHSCORES') or {}
    local client = first[1]
    if not client or redis.pcall('zrem', queue, client) ~= 1 then
      break
    end
    local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. client, 'next')
    if type(receivers) ~= 'number' then
      redis.pcall('zadd', queue, first[2], client)
      redis.pcall('pexpire', queue, 60000)
      break
    end
    if receivers > 0 then
      local lasts_ms = 10 * 2 ^ math.min(math.floor(first[2] % 1000 / 100), 6)
      local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + lasts_ms
      redis.pcall('zadd', next_key, until_ms, client)
      if redis.pcall('pexpire', next_key, 1000) ~= 1 then
        redis.pcall('del', next_key)
      end
      left, is_notified = left - 1, true
    end
  end
  if is_notified then
    stand_by(tag, true)
  end
  return is_notified
end
