-- Takes a lock for one owner, once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about and leasehold:cached -> see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner      who wants it
-- ARGV[2] count      the hold count that the owner shall have
-- ARGV[3] lease_ms   how long it shall run, at least
-- ARGV[4] queue_mode  what the wait queue (see `wait_queue.lua`) means to it. 'barge': takes a free lock, even if it is
--                    reserved for another client; 'spin': the same, and recalls a cached lock, as all others below do;
--                    'yield': respects the reservation; 'wait': the same, and joins the queue; 'stand': the same, and may be
--                    in it already; 'next': was notified that it is next, and comes before a newer reservation;
--                    'stand_for': as 'wait', for an election, but does not join a queue of three.
--                    The last four may end in a digit, the client's link
-- ARGV[5] max_ms     when the hold is to end at the latest, for people to read; 'cached': the client caches the lock until a
--                    recall (see `recall.lua`); left out with what follows
-- ARGV[6] place      where the owner is, for people to read
--
-- Returns 'granted' or {'granted', fence}   the owner has it with that count
--         {'granted', fence, queued}        the same, for a client that stood in the queue; queued: how many did, itself
--                                           included; fence '': none was wanted
--         {'busy', ttl_ms}                  others have it, or it is reserved for another client; -1: for ever
--         {'queued', ttl_ms, why}           the same, and the client is in the queue. why 'ours': the holder's release
--                                           notifies the queue; 'foreign': it does not; 'reserved': it is free and reserved
--         {'queued', ttl_ms, 'ours', 'first'}    the same, and the client is the first in the queue
--         {'queued', ttl_ms, 'full'}        the same, but the client is not in the queue
--         {'lost'}                          count above 1, but the owner has nothing
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, queue_mode, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local ttl_ms = redis.call('pttl', lock)

-- Makes the owner hold the free lock once; returns the error if that failed.
local function take(lock, owner, lease_ms, max_ms, place)
  -- Raises errors that would otherwise come half-way: a missing right to PEXPIRE here, missing memory by the HSET.
  if not redis.acl_check_cmd then
    -- Before Redis 7: on an absent key these two commands write nothing, but raise both errors, the first if memory is out.
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

-- Most locks are free and reserved for nobody. Each function that a script defines costs the server up to a fifth of a
-- command, so the functions for other locks come behind this, and behind them `acquire_rest.lua`.
if ttl_ms == -2 and count == '1' and not counter and (queue_mode == 'barge' or
    queue_mode:find('^[wy]') and not redis.pcall('get', 'leasehold_lock_next:' .. tag)) then
  return take(lock, owner, lease_ms, max_ms, place) or 'granted'
end
