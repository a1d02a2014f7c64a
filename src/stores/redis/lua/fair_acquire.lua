-- Takes a fair lock for one owner, once, or gives it a place behind those who came before and keeps that
-- place alive. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock         the lock's hash: owner -> hold count; leasehold:about and leasehold:cached -> see `show.lua`
-- KEYS[2] queue        the waiters, in order of arrival
-- KEYS[3] timeouts     until when each of them counts as alive for Redisson
-- KEYS[4] heartbeats   until when each waiter of this crate counts as alive
-- KEYS[5] counter      the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner        who wants it
-- ARGV[2] count        the hold count that the owner shall have
-- ARGV[3] lease_ms     how long it shall run, at least
-- ARGV[4] waits        '1': gets a place if others come first
-- ARGV[5] alive_ms     how long a place lasts without being asked for again
-- ARGV[6] channels     each waiter listens on this and its owner id
-- ARGV[7] max_ms       when the hold is to end at the latest, to be read by people; left out with what follows
-- ARGV[8] place        where its owner is, to be read by people
--
-- Returns {'granted'} or {'granted', fence}   the owner has it with that count
--         {'busy', ttl_ms}                    others have it or come first; ttl_ms: the lock is not free before, -1: unknown
--         {'lost'}                            count above 1, but the owner has nothing
local lock, queue, timeouts, heartbeats, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, count, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local waits, alive_ms, channels, max_ms, place = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl_ms = redis.call('pttl', lock)

if ttl_ms ~= -2 and redis.call('hexists', lock, owner) == 1 then
  local fence = counter and next_fence(counter, time)
  -- The owner may also be in the queue, if it asked again after a lost answer. The commands that may be refused
  -- come before the hold changes.
  if redis.call('zrem', timeouts, owner) + redis.call('zrem', heartbeats, owner) > 0 then
    redis.call('lrem', queue, 0, owner)
  end
  -- Expiry first, count second: PEXPIRE passes when the server is out of memory, and so does what follows it.
  redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))
  redis.call('hset', lock, owner, count)
  return {'granted', fence}
end
if count ~= '1' then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end

local function score(times, waiter)
  local ms = redis.call('zscore', times, waiter)
  return ms and tonumber(ms)
end
-- Removes dead waiters from the head, and a waiter without a time, for which Redisson would wait for ever.
local first = redis.call('lindex', queue, 0)
local first_until
local has_purged = false
while first do
  -- Redisson shortens our waiters' times, so a fresh heartbeat counts before the time.
  first_until = score(heartbeats, first) or score(timeouts, first) or 0
  if first == owner or first_until > now_ms then
    break
  end
  redis.call('lpop', queue)
  redis.call('zrem', timeouts, first)
  redis.call('zrem', heartbeats, first)
  has_purged = true
  first = redis.call('lindex', queue, 0)
end

-- Redisson removes the first waiter when its time is over, even a living one of ours, which then comes back as
-- the first.
local own_until = score(heartbeats, owner) or 0
local at = first == owner and 0 or first and redis.call('lpos', queue, owner)
local comes_back = not at and own_until > now_ms
if ttl_ms == -2 and (not first or first == owner or comes_back) then
  -- The fence is issued first: a counter that cannot be used raises before anything of the lock is written.
  local fence = counter and next_fence(counter, time)
  -- On an absent key these two commands write nothing, but raise errors that would otherwise come half-way: the
  -- first if memory is out, the second if the user may not PEXPIRE or the lease is no number.
  redis.call('set', lock, '', 'XX')
  redis.call('pexpire', lock, lease_ms)
  if max_ms then
    local about = string.format('%s %.0f %.0f %s', owner, now_ms, now_ms + max_ms, place)
    redis.call('hset', lock, owner, count, 'leasehold:about', about)
  else
    redis.call('hset', lock, owner, count)
  end
  local expiring = redis.pcall('pexpire', lock, lease_ms)
  if expiring ~= 1 then
    redis.call('del', lock)
    return expiring
  end
  -- The owner has the lock: anything that cannot be cleaned up now expires.
  if first == owner then
    redis.pcall('lpop', queue)
  end
  -- Redisson may have removed the owner from the queue, but not its heartbeat.
  if first == owner or own_until > 0 then
    redis.pcall('zrem', timeouts, owner)
    redis.pcall('zrem', heartbeats, owner)
  end
  return {'granted', fence}
end

if waits == '1' then
  -- Whenever one of its waiters gets the lock or gives up, Redisson subtracts that waiter's whole wait from the
  -- times of those behind it. Thus the time of each of our waiters ends after that of the Redisson waiter before
  -- it, and advances with the clock.
  local length = redis.call('llen', queue)
  local ahead = comes_back and 0 or at or length
  local before = ahead > 0 and redis.call('lindex', queue, ahead - 1)
  local until_ms = now_ms + alive_ms
  if before then
    local their_ms = score(timeouts, before) or 0
    local their_until = score(heartbeats, before)
    if their_until then
      -- The waiter before is ours: its timeout, moved on by the time since it last asked.
      until_ms = math.max(until_ms, their_ms + now_ms - (their_until - alive_ms))
    elseif not at or own_until == 0 then
      -- The waiter is new, or has not asked for so long that its old time no longer counts.
      until_ms = math.max(until_ms, their_ms + alive_ms)
    else
      until_ms = math.max(until_ms, (score(timeouts, owner) or 0) + now_ms - (own_until - alive_ms))
    end
  end
  -- Redisson gives the queue and the times no expiry, but the last waiter may be killed, and no other may come.
  -- A day is longer than any waiter waits without asking; and both keys outlast the time of our last waiter.
  local lasts_ms = math.max(86400000, until_ms - now_ms + alive_ms)
  redis.call('pexpire', queue, lasts_ms) -- a missing right raises here, before there is a key without an expiry
  -- The times first: if they are refused, no waiter is in the queue without a time.
  redis.call('zadd', timeouts, until_ms, owner)
  redis.call('pexpire', timeouts, lasts_ms)
  redis.call('zadd', heartbeats, now_ms + alive_ms, owner)
  redis.call('pexpire', heartbeats, alive_ms * 2)
  if not at then
    redis.call('rpush', queue, owner)
  end
  if comes_back then
    -- Moves the other waiters behind it, one by one.
    for _ = 1, length do
      redis.call('rpush', queue, redis.call('lpop', queue))
    end
  end
  redis.call('pexpire', queue, lasts_ms)
end
if ttl_ms ~= -2 then
  if waits == '1' and redis.pcall('hdel', lock, 'leasehold:cached') == 1 then
    -- The hash may have other fields than the owner, such as `leasehold:about`: no client listens to their channels.
    for _, holder in ipairs(redis.pcall('hkeys', lock)) do
      recall(lock, holder)
    end
  end
  return {'busy', ttl_ms}
end
if has_purged then
  redis.pcall('publish', channels .. first, '0')
end
return {'busy', first_until - now_ms}
