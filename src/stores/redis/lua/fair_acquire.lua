-- Takes a fair lock for one owner. If others come first, gives the owner a place in the queue and keeps the place alive.
-- A repeated request extends the lease, and issues a new fencing token (fence).
--
-- KEYS[1] lock         the lock's hash: owner -> hold count; for leasehold:about and leasehold:cached see `show.lua`
-- KEYS[2] queue        the waiters, in order of arrival
-- KEYS[3] timeouts     until when Redisson considers each waiter alive
-- KEYS[4] heartbeats   until when each waiter of this crate counts as alive; Redisson changes only `timeouts`
-- KEYS[5] counter      the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner        the owner that wants the lock
-- ARGV[2] count        the hold count that the owner shall have
-- ARGV[3] lease_ms     the minimum time that the lock shall be held from now on
-- ARGV[4] waits        '1': the owner gets a place in the queue if others come first
-- ARGV[5] alive_ms     how long a place lasts after the owner's last attempt
-- ARGV[6] channels     prefix of the waiters' channels; the owner's id follows
-- ARGV[7] max_ms       in how many ms the hold ends at the latest, for people to read; left out, as is `place`, if the hold
--                      has no maximum
-- ARGV[8] place        where the owner runs, for people to read
--
-- Returns {'granted'} or {'granted', fence}   the owner holds the lock with that count
--         {'busy', ttl_ms}                    another owner holds the lock or comes first; ttl_ms: until the lease of that
--                                             owner, or its place in the queue, ends; -1: for ever
--         {'lost'}                            the count was above 1, but the owner does not hold the lock
local lock, queue, timeouts, heartbeats, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, count, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local waits, alive_ms, channels, max_ms, place = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl_ms = redis.call('pttl', lock)

if ttl_ms ~= -2 and redis.call('hexists', lock, owner) == 1 then
  local fence = counter and next_fence(counter, time)
  -- The owner may still be in the queue, if it asked again after its first reply was lost. This clean-up comes first,
  -- so that a command that the user may not run fails before the hold changes.
  if redis.call('zrem', timeouts, owner) + redis.call('zrem', heartbeats, owner) > 0 then
    redis.call('lrem', queue, 0, owner)
  end
  -- PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
  redis.call('pexpire', lock, math.max(ttl_ms, lease_ms))
  redis.call('hset', lock, owner, count)
  return {'granted', fence}
end
if count ~= '1' then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
  return {'lost'}
end

local function score(times, waiter)
  local ms = redis.call('zscore', times, waiter)
  return ms and tonumber(ms)
end
-- Removes dead waiters from the head of the queue, and those that are in neither set, which Redisson would never remove.
local first = redis.call('lindex', queue, 0)
local first_until
local has_purged = false
while first do
  -- Redisson shortens the timeouts of our waiters, so a waiter with a heartbeat is judged by the heartbeat alone.
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

-- Redisson removes the first waiter when its timeout has passed, even a living waiter of ours, which then gets the
-- first place back (`comes_back`).
local own_until = score(heartbeats, owner) or 0
local at = first == owner and 0 or first and redis.call('lpos', queue, owner)
local comes_back = not at and own_until > now_ms
if ttl_ms == -2 and (not first or first == owner or comes_back) then
  -- The fence comes first: if the counter is unusable, the error stops the script before it has changed the lock.
  local fence = counter and next_fence(counter, time)
  -- Raises errors before HSET makes a key without an expiry: SET fails if the server is out of memory, PEXPIRE if the
  -- user may not run it or the lease is no number. Neither changes an absent key.
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
  -- The owner has the lock now. If this clean-up of the queue fails, what remains expires by itself.
  if first == owner then
    redis.pcall('lpop', queue)
  end
  -- If Redisson has removed the owner from the queue, the owner's heartbeat is still there, and must go too.
  if first == owner or own_until > 0 then
    redis.pcall('zrem', timeouts, owner)
    redis.pcall('zrem', heartbeats, owner)
  end
  return {'granted', fence}
end

if waits == '1' then
  -- Whenever a Redisson waiter gets the lock or gives up, Redisson subtracts that waiter's whole wait time from the
  -- timeouts of all waiters behind. Therefore a waiter of ours sets its timeout `alive_ms` later than that of the
  -- Redisson waiter before it, and raises the timeout with each attempt.
  local length = redis.call('llen', queue)
  local ahead = comes_back and 0 or at or length
  local before = ahead > 0 and redis.call('lindex', queue, ahead - 1)
  local until_ms = now_ms + alive_ms
  if before then
    local their_ms = score(timeouts, before) or 0
    local their_until = score(heartbeats, before)
    if their_until then
      -- The waiter before is ours, and has not raised its timeout since its last attempt, so that time is added.
      until_ms = math.max(until_ms, their_ms + now_ms - (their_until - alive_ms))
    elseif not at or own_until == 0 then
      until_ms = math.max(until_ms, their_ms + alive_ms)
    else
      until_ms = math.max(until_ms, (score(timeouts, owner) or 0) + now_ms - (own_until - alive_ms))
    end
  end
  -- Redisson sets no expiry on these keys; here they get one, so that they do not remain if the last waiter is killed. No
  -- waiter pauses for a day between attempts, but the last waiter's timeout may end later.
  local lasts_ms = math.max(86400000, until_ms - now_ms + alive_ms)
  redis.call('pexpire', queue, lasts_ms) -- fails here if the user may not run it, before a key without an expiry exists
  -- The timeout is written before the place in the queue: if the write is refused, no waiter stands there without a
  -- timeout.
  redis.call('zadd', timeouts, until_ms, owner)
  redis.call('pexpire', timeouts, lasts_ms)
  redis.call('zadd', heartbeats, now_ms + alive_ms, owner)
  redis.call('pexpire', heartbeats, alive_ms * 2)
  if not at then
    redis.call('rpush', queue, owner)
  end
  if comes_back then
    -- Moves all others behind the owner, which is the last one now.
    for _ = 1, length do
      redis.call('rpush', queue, redis.call('lpop', queue))
    end
  end
  redis.call('pexpire', queue, lasts_ms)
end
if ttl_ms ~= -2 then
  if waits == '1' and redis.pcall('hdel', lock, 'leasehold:cached') == 1 then
    -- Not only owners but notes such as `leasehold:about` get a recall; nobody listens to the channels of notes.
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
