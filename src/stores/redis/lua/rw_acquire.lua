-- Takes the read or the write lock (a half of a read-write lock) for one owner. A repeated request extends the lease,
-- and issues a new fencing token (fence).
--
-- KEYS[1] lock       the lock's hash: mode -> read or write; reader -> hold count; writer:write -> hold count
-- KEYS[2] marker     exists while this level of a read hold (one of the owner's acquisitions) lives, as in Redisson
-- KEYS[3] waiting    writers that go before readers, by the option `writers_first` -> until when each counts as waiting.
--                    The lock's own key if the lock does not have this option
-- KEYS[4] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] half       'read' or 'write'
-- ARGV[2] owner      the owner that wants the lock
-- ARGV[3] count      the hold count that the owner shall have
-- ARGV[4] lease_ms   the minimum time that the lock shall be held from now on
-- ARGV[5] alive_ms   how long an owner counts as waiting after a failed attempt; 0: the owner does not wait
-- ARGV[6] queue_mode  how a writer treats the wait queue (see `wait_queue.lua`), and the client's link, as in
--                     `acquire.lua`
-- ARGV[7] waited_ms  how long the caller has waited, which decides its client's place in the queue
--
-- Returns {'granted'} or {'granted', fence}   the owner holds the lock with that count
--         {'busy', ttl_ms}                    others hold the lock or come first; -1: no end is known
--         {'queued', ttl_ms, why}             as 'busy', but the client is in the queue. why 'soon': the next release
--                                             notifies the queue; 'any': perhaps not. ttl_ms -1: clients before this one
--                                             attempt first
--         {'queued', ttl_ms, why, 'first'}    as above, and the client is the first in the queue
--         {'lost'}                            the count was above 1, but the owner does not hold the lock
--         WRONGTYPE                           the name belongs to a lock of another kind
local lock, marker, waiting, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local half, owner, count, lease_ms, alive_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local queue_mode, link = queue_mode_of(ARGV[6])
local waited_ms, is_next = tonumber(ARGV[7]), false
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local queue, next_key = 'leasehold_lock_queue:' .. tag, 'leasehold_lock_next:' .. tag
local readers, client = 'leasehold_rwlock_readers:' .. tag, owner:sub(1, 36)

-- Whether the releases of all holders notify the queue, as those of clients with an id of UUID version 8 do. Returns
-- false for more than 64 readers, to save time.
local function is_ours()
  local fields = redis.pcall('hlen', lock)
  fields = type(fields) == 'number' and fields <= 64 and redis.pcall('hkeys', lock) or {}
  for at = 1, #fields do
    if fields[at] ~= 'mode' and fields[at]:sub(15, 15) ~= '8' then
      return false
    end
  end
  return #fields > 0
end

-- Sends one recall to each holder that has registered by `rw_hear.lua`. `leasehold_rwlock_hearers:{name}` is a sorted
-- set: a holder's field -> the end of its registration in ms, or minus that number once the recall was sent. The
-- registrations are not in the lock's hash, since Redisson counts the fields of that hash.
local function recall_hearers()
  local hearers = 'leasehold_rwlock_hearers:' .. tag
  -- Reads the hundred members with the highest scores. Holders that were recalled have negative scores.
  local fields = redis.pcall('zrange', hearers, -100, -1, 'WITHSCORES')
  for at = 1, #fields, 2 do
    if tonumber(fields[at + 1]) > 0 then
      redis.pcall('zadd', hearers, 'XX', -fields[at + 1], fields[at])
      recall(lock, fields[at])
    end
  end
end

local PATIENCE_MS = 50

-- Registers a waiting reader of this client, so that the end of a write admits it (see `readers.lua`).
local function register_reader()
  redis.pcall('zadd', readers, (now_ms()), client)
  redis.pcall('zadd', readers, 'GT', link, 'link')
  if redis.pcall('pexpire', readers, 6000) ~= 1 then
    redis.pcall('del', readers)
  end
end

-- Whether a reader has to wait until the first writer has written: the writer has waited for PATIENCE_MS, and the reader
-- came after the end of the last write.
local function is_held_back()
  local first = redis.pcall('zrange', queue, 0, 0, 'WITHSCORES')
  if not first[2] then
    return false
  end
  local now, now_s = now_ms()
  if is_dead(first[2], now_s) then
    drop_dead(queue, now_s)
    return false
  end
  if 1700000000000 + first[2] / 10000 + PATIENCE_MS > now then
    return false
  end
  local phase = redis.pcall('zscore', readers, 'phase')
  return now - waited_ms > (tonumber(phase) or 0)
end

local field = half == 'write' and owner .. ':write' or owner
local mode = redis.call('hget', lock, 'mode')
local ttl_ms = redis.call('pttl', lock)
local held = mode and redis.call('hexists', lock, field) == 1
if not held then
  if count ~= '1' then
    -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
    redis.call('hdel', lock, field)
    return {'lost'}
  end
  if ttl_ms ~= -2 and not mode then
    return {err = 'WRONGTYPE another kind of lock'}
  end
  local writes = mode == 'write' and redis.call('hexists', lock, owner .. ':write') == 1
  local may_join = half == 'read' and (mode == 'read' or writes)
  if waiting ~= lock then
    local time = redis.call('time')
    local clock_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    if half == 'write' then
      redis.call('zrem', waiting, owner)
      redis.call('zremrangebyscore', waiting, 0, clock_ms)
      if ttl_ms ~= -2 and alive_ms > 0 then
        -- If the server is out of memory, the writer waits all the same, but readers do not let it go first.
        redis.pcall('zadd', waiting, clock_ms + alive_ms, owner)
        if redis.pcall('pexpire', waiting, alive_ms * 2) ~= 1 then
          redis.pcall('zrem', waiting, owner)
        end
      end
    elseif not writes then
      local last = redis.call('zrange', waiting, -1, -1, 'WITHSCORES')
      local first_ms = (tonumber(last[2]) or 0) - clock_ms
      if first_ms > 0 then
        if mode == 'write' and alive_ms > 0 then
          recall_hearers()
        end
        return {'busy', mode == 'write' and math.max(ttl_ms, first_ms) or first_ms}
      end
    end
  end
  local is_free = ttl_ms == -2
  if half == 'write' then
    local reserved = nil
    if is_free and queue_mode == 'next' then
      is_next = true
    elseif is_free and queue_mode ~= 'barge' and queue_mode ~= 'spin' then
      reserved, is_next = reserved_ms(lock, client)
      reserved = reserved or not is_next and expects_readers(tag)
    end
    if not is_free or reserved then
      if not is_free and alive_ms > 0 then
        recall_hearers()
      end
      local is_first = nil
      if queue_mode == 'wait' or queue_mode == 'stand' or queue_mode == 'next' then
        is_first = stand(tag, client, link, waited_ms)
      end
      if is_first == nil then
        return {'busy', reserved or ttl_ms}
      end
      local why = (reserved or is_ours()) and 'soon' or 'any'
      return is_first and {'queued', reserved or ttl_ms, why, 'first'} or {'queued', reserved or -1, why}
    end
  elseif not writes then
    -- A writer's reservation is short, so readers respect it.
    local reserved = is_free and reserved_ms(lock, '')
    if reserved or not is_free and not may_join or is_held_back() then
      if alive_ms > 0 and not is_free and not may_join then
        recall_hearers()
      end
      if alive_ms > 0 and waiting == lock then
        register_reader() -- not with `writers_first`, where readers and writers take no turns
      end
      return {'busy', reserved or mode == 'write' and ttl_ms or -1}
    end
  end
end

-- The fence comes first: if the counter is unusable, the error stops the script before it has changed the lock.
local fence = counter and next_fence(counter)

if ttl_ms ~= -2 then
  -- PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
  redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))
end
if half == 'read' then
  -- The marker comes before the hold: a marker without a hold does no harm, but Redisson ignores a hold without a marker.
  redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
end
if ttl_ms ~= -2 then
  redis.call('hset', lock, field, count)
else
  -- Raises errors before HSET makes a key without an expiry: SET fails if the server is out of memory, PEXPIRE if the
  -- user may not run it or the lease is no number. Neither changes an absent key.
  redis.call('set', lock, '', 'XX')
  redis.call('pexpire', lock, lease_ms)
  redis.call('hset', lock, 'mode', half, field, count)
  local expiring = redis.pcall('pexpire', lock, lease_ms)
  if expiring ~= 1 then
    redis.call('del', lock)
    return expiring
  end
end
if half == 'read' then
  if waited_ms > 0 then
    forget_reader(tag, client)
  end
elseif not held then
  if is_next then
    redis.pcall('pexpire', next_key, 0)
  end
  if is_next or queue_mode == 'stand' then
    redis.pcall('zrem', queue, client)
  end
end
return {'granted', fence}
