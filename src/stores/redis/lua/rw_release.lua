-- Sets an owner's hold count of one half of a read-write lock to `left`. Frees the lock if no owner holds either half.
-- Notifies the waiters of each half that may be free now.
--
-- KEYS[1] lock       the lock's hash: mode -> read or write; reader -> hold count; writer:write -> hold count
-- ARGV[1] half       'read' or 'write'
-- ARGV[2] owner      the owner that releases
-- ARGV[3] left       the hold count that shall remain
-- ARGV[4] lease_ms   the lease to set if the key has lost its expiry
-- ARGV[5] base       prefix of the markers, one for each living level of a reader: base:reader:rwlock_timeout:level
-- ARGV[6] waiting    writers that go before readers -> until when each counts as waiting; '': no writers go before readers
-- ARGV[7] channel    the channel on which waiters listen
--
-- Returns {'freed', 0}           the owner holds nothing of this half now
--         {'still_held'}         the owner holds this half with the count `left`; the expiry is unchanged
--         {'not_held'}           no owner holds the lock
--         {'not_held', holder}   another owner holds the lock; holder '': the user has no right to HKEYS
local lock = KEYS[1]
local half, owner, left, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local base, waiting, channel = ARGV[5], ARGV[6], ARGV[7]
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'

if half == 'write' and waiting ~= '' and redis.call('zrem', waiting, owner) == 1 and
  redis.call('zcard', waiting) == 0 then
  -- No writer waits any more, so the readers that waited for writers may attempt again.
  redis.pcall('publish', channel, '1')
end
local field = half == 'write' and owner .. ':write' or owner
local count = redis.call('hget', lock, field)
if not count then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, field)
  if redis.call('pttl', lock) == -2 then
    return {'not_held'}
  end
  local fields = redis.pcall('hkeys', lock)
  for _, holder in ipairs(fields) do
    if holder ~= 'mode' then
      return {'not_held', holder}
    end
  end
  return {'not_held', ''}
end

local function marker(reader, level)
  return base .. ':' .. reader .. ':rwlock_timeout:' .. level
end
-- Keeps the expiry. PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
local ttl_ms = redis.call('pttl', lock)
if ttl_ms == -1 then
  ttl_ms = lease_ms
end
redis.call('pexpire', lock, math.max(ttl_ms, 1))
if half == 'read' then
  local rest_ms = 0
  for level = math.max(tonumber(left), 1), tonumber(count) do
    rest_ms = math.max(rest_ms, redis.call('pttl', marker(owner, level)))
  end
  for level = tonumber(left) + 1, tonumber(count) do
    redis.call('del', marker(owner, level))
  end
  if left ~= '0' and rest_ms > 0 then
    -- A released level must not shorten the hold, so the newest remaining marker takes over the longest expiry.
    redis.call('set', marker(owner, left), '1', 'PX', rest_ms)
  end
end
if left ~= '0' then
  redis.call('hset', lock, field, left)
  return {'still_held'}
end

if half == 'read' and redis.call('hget', lock, 'mode') == 'write' then
  redis.call('hdel', lock, field)
  return {'freed', 0}
end
-- A reader whose markers have all expired is dead. The lock lasts as long as the longest marker of any other reader.
local longest_ms = 0
local fields = redis.call('hkeys', lock)
for _, reader in ipairs(fields) do
  if reader ~= 'mode' and reader ~= field then
    for level = 1, tonumber(redis.call('hget', lock, reader)) or 0 do
      longest_ms = math.max(longest_ms, redis.call('pttl', marker(reader, level)))
    end
  end
end
-- After the first HDEL, no command may fail for lack of a right: a hash without its owner would remain, and block all
-- clients. So all reads come before, and HDEL deletes all fields.
if longest_ms > 0 then
  if half == 'write' then
    -- The writer keeps its read hold, but no longer than the lease of that hold.
    redis.call('hset', lock, 'mode', 'read')
  end
  redis.call('hdel', lock, field)
  redis.call('pexpire', lock, longest_ms)
else
  for _, gone in ipairs(fields) do
    redis.call('hdel', lock, gone)
  end
end
local is_free, readers = longest_ms <= 0, 'leasehold_rwlock_readers:' .. tag
local do_some_wait = redis.pcall('exists', 'leasehold_lock_queue:' .. tag, readers) ~= 0
if half == 'write' then
  -- Readers that have waited go before the next writer.
  local are_awaited = do_some_wait and begin_readers(tag)
  if do_some_wait and is_free then
    if are_awaited then
      stand_by(tag)
    else
      notify_next(lock, true)
    end
  end
  -- Other readers may enter now, even if the writer keeps a read hold (Redisson does not notify them then). '1' wakes
  -- all of Redisson's waiters that sleep, '0' also one that is about to sleep.
  redis.pcall('publish', channel, '1')
  redis.pcall('publish', channel, '0')
elseif is_free then
  local is_reserved = do_some_wait and (expects_readers(tag) or notify_next(lock, true))
  -- Readers that are still registered waited for a writer that has given up or died.
  if do_some_wait and not is_reserved and redis.pcall('del', readers) ~= 0 then
    redis.pcall('publish', channel, '1')
  end
  redis.pcall('publish', channel, '0')
end
return {'freed', 0}
