-- Functions for scripts in which readers and writers of a read-write lock take turns.
--
-- Waiting writers stand in the wait queue (see `wait_queue.lua`). Once the first writer has waited for 50 ms, new readers
-- wait until it has written. When a write ends, all readers that wait at that moment may enter: this begins a phase. The
-- next writer is notified when these readers have entered, or after 20 ms, doubled `link` times (see `wait_queue.lua`).
-- Source: phase-fair locks, Brandenburg and Anderson, Spin-Based Reader-Writer Synchronization for Multiprocessor Real-Time
-- Systems, 2010.
--
-- `leasehold_rwlock_readers:{name}` is a sorted set with three kinds of members. The score of a client is the time of its
-- reader's last failed attempt, by the server's clock in milliseconds; that of `phase` is the start of the current phase;
-- that of `link` is the largest link of the waiting readers. The key is not among KEYS, and its commands run by pcall, as
-- those of the wait queue: if they fail, for lack of a right or of memory, readers and writers take no turns.
--
-- Defines `now_ms`: returns the server's clock in milliseconds and in seconds
--         `begin_readers`: at the end of a write, begins a phase if readers wait; returns whether any do
--         `forget_reader`: removes a client's waiting readers
--         `expects_readers`: returns for how many more milliseconds readers of the phase are expected, or nil
local function now_ms()
  local time = redis.pcall('time')
  return (time[1] or 0) * 1000 + math.floor((time[2] or 0) / 1000), time[1] or 0
end

local function begin_readers(tag)
  local readers = 'leasehold_rwlock_readers:' .. tag
  if redis.pcall('exists', readers) ~= 1 then
    return false
  end
  -- Forgets readers that the last phase admitted and that have not attempted since. (Scores below 10 are the link.)
  local last = redis.pcall('zscore', readers, 'phase')
  if type(last) == 'string' then
    redis.pcall('zremrangebyscore', readers, 10, last)
  end
  local waiting = redis.pcall('zcount', readers, 10, '+inf')
  if type(waiting) ~= 'number' or waiting == 0 then
    redis.pcall('del', readers)
    return false
  end
  return redis.pcall('zadd', readers, (now_ms()), 'phase') == 1
end

local function forget_reader(tag, client)
  local readers = 'leasehold_rwlock_readers:' .. tag
  redis.pcall('zrem', readers, client)
  -- A running phase is kept, since other threads of this client may have waited for it.
  if redis.pcall('zcard', readers) == 1 and type(redis.pcall('zscore', readers, 'link')) == 'string' then
    redis.pcall('del', readers)
  end
end

local function expects_readers(tag)
  local readers = 'leasehold_rwlock_readers:' .. tag
  local phase = redis.pcall('zscore', readers, 'phase')
  if type(phase) ~= 'string' then
    return nil
  end
  local link = tonumber(redis.pcall('zscore', readers, 'link')) or 0
  local left_ms = phase + 20 * 2 ^ math.min(link, 6) - now_ms()
  -- The count includes the member `phase` itself.
  local expected = left_ms > 0 and redis.pcall('zcount', readers, 10, phase)
  return type(expected) == 'number' and expected > 1 and left_ms or nil
end
