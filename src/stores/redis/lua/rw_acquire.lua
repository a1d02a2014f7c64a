-- Takes one half of a read-write lock for one owner, once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: mode -> read or write; reader -> hold count; writer:write -> hold count
-- KEYS[2] marker     of this read hold: it counts as alive as long as this key; unused by writers
-- KEYS[3] waiting    writers that wait and come before readers -> until when each counts as alive; the lock itself: the
--                    owner does not go by that
-- KEYS[4] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] half       'read' or 'write'
-- ARGV[2] owner      who wants it
-- ARGV[3] count      the hold count that the owner shall have
-- ARGV[4] lease_ms   how long it shall run, at least
-- ARGV[5] alive_ms   a writer that others keep out counts as waiting for so long; 0: it does not wait
--
-- Returns {'granted'} or {'granted', fence}   the owner has it with that count
--         {'busy', ttl_ms}                    others have it, or come first; -1: for ever
--         {'lost'}                            count above 1, but the owner has nothing
--         WRONGTYPE                           a lock of another kind has the name
local lock, marker, waiting, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local half, owner, count, lease_ms, alive_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local field = half == 'write' and owner .. ':write' or owner
local mode = redis.call('hget', lock, 'mode')
local ttl_ms = redis.call('pttl', lock)
local held = mode and redis.call('hexists', lock, field) == 1
if not held then
  if count ~= '1' then
    -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
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
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    if half == 'write' then
      -- Not for long, and once more each time that it asks and is kept out.
      redis.call('zrem', waiting, owner)
      redis.call('zremrangebyscore', waiting, 0, now_ms)
      if ttl_ms ~= -2 and alive_ms > 0 then
        -- Were memory out, it would wait all the same, and readers would not stand back.
        redis.pcall('zadd', waiting, now_ms + alive_ms, owner)
        if redis.pcall('pexpire', waiting, alive_ms * 2) ~= 1 then
          redis.pcall('zrem', waiting, owner)
        end
      end
    elseif not writes then
      local last = redis.call('zrange', waiting, -1, -1, 'WITHSCORES')
      local first_ms = (tonumber(last[2]) or 0) - now_ms
      if first_ms > 0 then
        if mode == 'write' and alive_ms > 0 then
          recall_hearers(lock)
        end
        return {'busy', mode == 'write' and math.max(ttl_ms, first_ms) or first_ms}
      end
    end
  end
  if ttl_ms ~= -2 and not may_join then
    if alive_ms > 0 then
      recall_hearers(lock)
    end
    return {'busy', ttl_ms}
  end
end

-- The fence first: a counter that cannot be used refuses before anything of the lock is written.
local fence = counter and next_fence(counter)

if ttl_ms ~= -2 then
  -- Time first, count second: PEXPIRE passes when the server is out of memory, and what follows it passes
  -- too.
  redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))
end
if half == 'read' then
  -- The marker before the hold: a reader without one is nobody to Redisson.
  redis.call('set', marker, '1', 'PX', math.max(redis.call('pttl', marker), lease_ms))
end
if ttl_ms ~= -2 then
  redis.call('hset', lock, field, count)
else
  -- On an absent key these two write nothing, but raise what would be raised half-way: the first if memory is
  -- out, the second if the user may not PEXPIRE or the lease is no number.
  redis.call('set', lock, '', 'XX')
  redis.call('pexpire', lock, lease_ms)
  redis.call('hset', lock, 'mode', half, field, count)
  local expiring = redis.pcall('pexpire', lock, lease_ms)
  if expiring ~= 1 then
    redis.call('del', lock)
    return expiring
  end
end
return {'granted', fence}
