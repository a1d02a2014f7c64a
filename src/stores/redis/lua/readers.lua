-- Prefix of scripts by which readers and writers of a read-write lock take turns.
--
-- A waiting writer stands in the wait queue (see `wait_queue.lua`). Once the first writer has waited for 50 ms, readers that
-- come later wait for it. When a write ends, all readers that waited by then may enter; the next writer is notified when
-- they have, or when the time for a message and a request is over. Source: phase-fair locks, Brandenburg
-- and Anderson, Spin-Based Reader-Writer Synchronization for Multiprocessor Real-Time Systems, 2010.
--
-- `leasehold_rwlock_readers:{name}` is a sorted set: client -> when its reader last asked in vain, by the server's clock
-- in milliseconds; `phase` -> when the last write ended that readers waited for; `link` -> the longest link of them.
-- As with the wait queue, this key is not among KEYS, and each command goes by pcall: without the right, or without
-- memory, readers and writers take no turns.
--
-- Defines `now_ms`: the server's clock, and its seconds; `begin_readers`, at the end of a write: whether readers wait, who
-- may enter from now on; `forget_reader`: a client's readers wait no more; `expects_readers`: for how many more
-- milliseconds such readers are expected, or nil
local function now_ms()
  local time = redis.pcall('time')
  return (time[1] or 0) * 1000 + math.floor((time[2] or 0) / 1000), time[1] or 0
end

local function begin_readers(tag)
  local readers = 'leasehold_rwlock_readers:' .. tag
  if redis.pcall('exists', readers) ~= 1 then
    return false
  end
  -- A reader that was admitted and did not come is not waited for again, unless it has asked since.
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
  -- A phase stays: other threads of the client may have waited for it.
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
  -- The entry `phase` is one of those counted.
  local expected = left_ms > 0 and redis.pcall('zcount', readers, 10, phase)
  return type(expected) == 'number' and expected > 1 and left_ms or nil
end
