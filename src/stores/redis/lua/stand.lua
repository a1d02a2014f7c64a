-- Functions for scripts in which a client joins the wait queue (see `wait_queue.lua`) of a semaphore, or of a read-write
-- lock for writing. Clients are ordered by when their threads began to wait, so a client that was notified but got nothing
-- gets its old place.
--
-- Defines `stand`: puts the client into the queue and returns whether the client is the first; nil: it could not join
--         `queue_mode_of`: splits an argument into the queue mode and the client's link
local function queue_mode_of(argument)
  local link = tonumber(argument:sub(-1))
  return link and argument:sub(1, -2) or argument, link or 0
end

local function stand(tag, client, link, waited_ms)
  local queue = 'leasehold_lock_queue:' .. tag
  local time = redis.pcall('time')
  if time.err then
    return nil
  end
  local place = tonumber(redis.pcall('zscore', queue, client))
  local joined = place or (time[1] - 1700000000) * 10000000 + time[2] * 10 - waited_ms * 10000
  local added = redis.pcall('zadd', queue, place_score(joined, link, time[1]), client)
  if type(added) ~= 'number' or redis.pcall('pexpire', queue, 60000) ~= 1 then
    redis.pcall('zrem', queue, client)
    return nil
  end
  local first = redis.pcall('zrange', queue, 0, 0, 'WITHSCORES')
  if first[2] and is_dead(first[2], time[1]) then
    first[1] = drop_dead(queue, time[1])
  end
  return first[1] == client
end
