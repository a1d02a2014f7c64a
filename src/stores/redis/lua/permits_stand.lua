-- Functions for scripts that acquire permits for a client, or put the client into the queue for permits (see
-- `permits_queue.lua`).
--
-- Defines `may_take`: returns whether the `left` permits that would remain are enough for the reservations of others
--         `reserved_left_ms`: returns for how long the first reservation lasts, or -1
--         `stand_for_permits`: puts the client into the queue; returns whether it is the first; nil: it is not in the queue
--         `leave_queue`: removes the client from the queue, and notifies the next ones of the `count` free permits
local function may_take(tag, client, queue_mode, left)
  return queue_mode == 'barge' or queue_mode == 'spin' or reserved_for_others(tag, client) <= left
end

local function reserved_left_ms(tag)
  local first = redis.pcall('zrange', 'leasehold_lock_next:' .. tag, 0, 0, 'WITHSCORES')
  local time = first[2] and redis.pcall('time') or {}
  return time[2] and math.max(first[2] - time[1] * 1000 - math.floor(time[2] / 1000), 0) or -1
end

local function stand_for_permits(tag, client, argument, waited_ms, count)
  local queue_mode, link = queue_mode_of(argument)
  if queue_mode ~= 'wait' and queue_mode ~= 'stand' and queue_mode ~= 'next' then
    return nil
  end
  redis.pcall('zrem', 'leasehold_lock_next:' .. tag, client)
  local is_first = stand(tag, client, link, waited_ms)
  if count > 0 then
    -- There are too few permits for this client. Clients behind it may need fewer; those before it were notified of
    -- these permits already.
    local place = redis.pcall('zrank', 'leasehold_lock_queue:' .. tag, client)
    notify_for_permits(tag, count, type(place) == 'number' and place + 1 or 0)
  end
  return is_first
end

local function leave_queue(tag, client, argument, count)
  local queue_mode = queue_mode_of(argument)
  local queue, next_key = 'leasehold_lock_queue:' .. tag, 'leasehold_lock_next:' .. tag
  if redis.pcall('exists', queue, next_key) == 0 then
    return
  end
  if queue_mode ~= 'barge' and queue_mode ~= 'spin' then
    -- The reservation is the client's, so a grant to any of its threads ends it.
    redis.pcall('zrem', next_key, client)
  end
  if queue_mode == 'stand' or queue_mode == 'next' then
    redis.pcall('zrem', queue, client)
  end
  notify_for_permits(tag, count)
end
