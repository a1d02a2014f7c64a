-- Sets an owner's hold count of a fair lock to `left`. If that is 0, frees the lock and notifies the first waiter.
--
-- KEYS[1] lock         the lock's hash: owner -> hold count
-- KEYS[2] queue        the waiters, in order of arrival
-- KEYS[3] timeouts     until when Redisson considers each waiter alive
-- KEYS[4] heartbeats   until when each waiter of this crate counts as alive
-- ARGV[1] owner        the owner that releases
-- ARGV[2] left         the hold count that shall remain
-- ARGV[3] lease_ms     the lease to set if the key has lost its expiry
-- ARGV[4] way          'release'; 'leave': releases, and removes the owner from the queue; 'force': frees the lock whoever
--                      holds it
-- ARGV[5] channels     prefix of the waiters' channels; the owner's id follows
--
-- Returns {'freed', 0}           the owner holds nothing now; with 'force': no owner does
--         {'still_held'}         the owner holds the lock with the count `left`; the expiry is unchanged
--         {'not_held'}           no owner holds the lock
--         {'not_held', holder}   another owner holds the lock; holder '': the user has no right to HKEYS
--         {'no_lock'}            with 'force': the hash is not a lock; nothing changed
local lock, queue, timeouts, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, left, lease_ms, way, channels = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

if way == 'force' and redis.call('pttl', lock) ~= -2 and not is_lock(lock) then
  return {'no_lock'}
end
local is_held = redis.call('hexists', lock, owner) == 1
if is_held and left ~= '0' then
  -- Keeps the expiry. PEXPIRE is first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
  local ttl_ms = redis.call('pttl', lock)
  if ttl_ms == -1 then
    ttl_ms = lease_ms
  end
  redis.call('pexpire', lock, math.max(ttl_ms, 1))
  redis.call('hset', lock, owner, left)
  return {'still_held'}
end

local was_first = redis.call('lindex', queue, 0)
if way == 'leave' then
  redis.call('lrem', queue, 0, owner)
  redis.call('zrem', timeouts, owner)
  redis.call('zrem', heartbeats, owner)
end
local freed = false
if is_held or way == 'force' then
  freed = redis.call('del', lock) == 1
else
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, owner)
end

-- Does not call PTTL for a key that this script has deleted: while the slot moves to another node of a cluster, the
-- server looks for a missing key there, and stops the script.
local ttl_ms = freed and -2 or redis.call('pttl', lock)
if ttl_ms == -2 then
  -- Removes dead waiters from the head of the queue, and those in neither set, which Redisson would never remove.
  local time = redis.call('time')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local first = redis.call('lindex', queue, 0)
  while first do
    -- Our waiters are judged by their heartbeat, since Redisson's waiters shorten the timeouts of others.
    local first_until = redis.call('zscore', heartbeats, first) or redis.call('zscore', timeouts, first)
    if tonumber(first_until or 0) > now_ms then
      break
    end
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, first)
    redis.call('zrem', heartbeats, first)
    first = redis.call('lindex', queue, 0)
  end
  if first and (freed or first ~= was_first) then
    redis.pcall('publish', channels .. first, '0')
  end
end
if freed then
  return {'freed', 0}
end
if ttl_ms == -2 then
  return {'not_held'}
end
for _, holder in ipairs(redis.pcall('hkeys', lock)) do
  if holder:sub(1, 10) ~= 'leasehold:' then
    return {'not_held', holder}
  end
end
return {'not_held', ''}
