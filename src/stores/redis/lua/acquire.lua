-- Takes a lock for one owner. A repeated request extends the lease, and issues a new fencing token (fence).
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; for leasehold:about and leasehold:cached see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner      the owner that wants the lock
-- ARGV[2] count      the hold count that the owner shall have
-- ARGV[3] lease_ms   the minimum time that the lock shall be held from now on
-- ARGV[4] queue_mode  how the attempt treats the queue of waiting clients (see `wait_queue.lua`):
--                     'barge'      takes a free lock even if a release has reserved it for another client
--                     'spin'       as 'barge'; also recalls a cached lock (see `recall.lua`), as do all modes below
--                     'yield'      respects a reservation
--                     'wait'       as 'yield', and joins the queue if the lock is not granted
--                     'stand'      as 'wait', for a client that may be in the queue already
--                     'next'       as 'stand', for a client that a release has notified: takes a free lock even if the
--                                  reservation has passed to another client meanwhile
--                     'stand_for'  as 'wait', for an election: does not join a queue that already has three clients
--                     From 'wait' on, a digit may follow: the client's link (see `wait_queue.lua`)
-- ARGV[5] max_ms     in how many ms the hold ends at the latest, for people to read; or 'cached': the client caches the
--                    lock until a recall. Left out, as is `place`, if neither applies
-- ARGV[6] place      where the owner runs, for people to read
--
-- Returns 'granted' or {'granted', fence}   the owner holds the lock with that count
--         {'granted', fence, queued}        as above, for a client that was in the queue; queued: how many clients were in
--                                           it; fence '': no fence was wanted
--         {'busy', ttl_ms}                  another owner holds the lock, or the lock is reserved; ttl_ms: for how long,
--                                           -1: for ever
--         {'queued', ttl_ms, why}           as 'busy', but the client is in the queue. why 'ours': the holder's release
--                                           notifies the queue; 'foreign': perhaps not, as the holder may be Redisson's;
--                                           'reserved': the lock is free but reserved
--         {'queued', ttl_ms, 'ours', 'first'}    as above, and the client is the first in the queue
--         {'queued', ttl_ms, 'full'}        as 'busy'; the client did not join, since the queue was full
--         {'lost'}                          the count was above 1 (a re-entry), but the owner does not hold the lock
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, queue_mode, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local ttl_ms = redis.call('pttl', lock)

-- Grants the free lock to the owner with count 1. Returns the error if that failed.
local function take(lock, owner, lease_ms, max_ms, place)
  -- If PEXPIRE failed after HSET, a lock without an expiry could remain. So errors are raised before HSET.
  if not redis.acl_check_cmd then
    -- Redis 6 has no `acl_check_cmd`, so this tries the commands: SET fails if the server is out of memory, PEXPIRE if the
    -- user may not run it. Neither changes an absent key.
    redis.call('set', lock, '', 'XX')
    redis.call('pexpire', lock, lease_ms)
  elseif not redis.acl_check_cmd('pexpire', lock, lease_ms) then
    return redis.pcall('pexpire', lock, lease_ms)
  end
  if max_ms == 'cached' then
    redis.call('hset', lock, owner, '1', 'leasehold:cached', '')
  elseif max_ms then
    local time = redis.call('time')
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    local about = string.format('%s %.0f %.0f %s', owner, now_ms, now_ms + max_ms, place)
    redis.call('hset', lock, owner, '1', 'leasehold:about', about)
  else
    redis.call('hset', lock, owner, '1')
  end
  local expiring = redis.pcall('pexpire', lock, lease_ms)
  if expiring ~= 1 then
    redis.call('del', lock)
    return expiring
  end
end

-- Most locks are free and not reserved. For them the script ends here, before it defines the functions that
-- `acquire_rest.lua` needs: each of these would cost the server up to a fifth of a command.
if ttl_ms == -2 and count == '1' and not counter and (queue_mode == 'barge' or
    queue_mode:find('^[wy]') and not redis.pcall('get', 'leasehold_lock_next:' .. tag)) then
  return take(lock, owner, lease_ms, max_ms, place) or 'granted'
end
