-- The second half of `acquire.lua`: re-entries, fences, and locks that are held or reserved. Between the halves come the
-- files that define its functions (see `script.rs`).
--
-- Returns what `acquire.lua` returns
local link = tonumber(queue_mode:sub(-1)) or 0
if link > 0 then
  queue_mode = queue_mode:sub(1, -2)
end

local client = owner:sub(1, 36) -- an owner is `client:number`, where the client is a UUID of 36 characters
local held, holders, holder, is_cached, is_next = false, false, nil, false, false
local asks, barges = queue_mode ~= 'barge', queue_mode == 'barge' or queue_mode == 'spin'
local waits = not barges and queue_mode ~= 'yield'
if ttl_ms ~= -2 then
  holders = asks and redis.pcall('hkeys', lock)
  if holders and not holders.err then
    for at = 1, #holders do
      local field = holders[at]
      held = held or field == owner
      is_cached = is_cached or field == 'leasehold:cached'
      holder = holder or field:sub(1, 10) ~= 'leasehold:' and field
    end
  else
    held = redis.call('hexists', lock, owner) == 1
  end
end
if not held then
  if count ~= '1' then
    -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
    redis.call('hdel', lock, owner)
    return {'lost'}
  end
  if ttl_ms ~= -2 and drop_ownerless(lock, holders) then
    ttl_ms = -2
  end
  local wait_ms, why = ttl_ms ~= -2 and ttl_ms, 'foreign'
  if wait_ms then
    -- Clients whose releases notify the queue have ids of UUID version 8; Redisson's clients have version 4.
    if holder and holder:find('^%x+%-%x+%-8%x%x%x%-%x+%-%x+:%d+$') and holder:sub(15, 15) == '8' then
      why = 'ours'
    end
  elseif queue_mode == 'next' then
    is_next = true
  elseif not barges then
    wait_ms, is_next = reserved_ms(lock, client)
    why = 'reserved'
  end
  if wait_ms then
    -- Once the holder's client has received a recall, the field 'leasehold:cached' is removed, so nobody sends another.
    if is_cached and why == 'ours' and recall(lock, holder) then
      redis.pcall('hdel', lock, 'leasehold:cached')
    end
    if not waits then
      return {'busy', wait_ms}
    end
    local queue = 'leasehold_lock_queue:' .. tag
    local time = redis.pcall('time')
    if time.err then
      return {'busy', wait_ms}
    end
    local first = redis.pcall('zrange', queue, 0, 0, 'WITHSCORES')
    local is_first = not first[1] or first[1] == client
    local is_stale = first[2] and is_dead(first[2], time[1])
    if queue_mode == 'stand_for' then
      if redis.pcall('zrange', queue, 2, 2)[1] and not is_stale then
        return {'queued', wait_ms, 'full'}
      end
      queue_mode = 'wait'
    end
    -- A client in the queue keeps its place. A notified client is no longer in the queue; if another client took the lock
    -- before it, the notified client joins before all others.
    local place = queue_mode == 'stand' and tonumber(redis.pcall('zadd', queue, 'XX', 'INCR', 0, client))
    if not place or is_stale or place % 100 ~= time[1] % 100 then
      local joined = place or queue_mode == 'next' and first[2] and first[2] - 1000
      joined = joined or (time[1] - 1700000000) * 10000000 + time[2] * 10
      local added = redis.pcall('zadd', queue, place and 'XX' or 'NX', place_score(joined, link, time[1]), client)
      if type(added) ~= 'number' then
        return {'busy', wait_ms}
      end
      -- Attempts of queued clients extend the queue's expiry, so a client that joins behind a living one need not do so.
      if (queue_mode ~= 'wait' or is_stale or not first[1]) and redis.pcall('pexpire', queue, 60000) ~= 1 then
        redis.pcall('zrem', queue, client)
        return {'busy', wait_ms}
      end
      is_first = is_first or queue_mode == 'next'
      -- The first client removes dead clients (see `join.lua`), except in the attempt by which it joins. If the first
      -- client is dead, any client removes them.
      if is_stale or is_first and queue_mode ~= 'wait' then
        is_first = drop_dead(queue, time[1]) == client
      end
    end
    if is_first and why == 'ours' then
      return {'queued', wait_ms, why, 'first'}
    end
    return {'queued', wait_ms, why}
  end
end

-- The fence comes first: if the counter is unusable, the error stops the script before it has changed the lock.
local fence = counter and next_fence(counter)

if held then
  -- PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
  redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))
  redis.call('hset', lock, owner, count)
else
  local failure = take(lock, owner, lease_ms, max_ms, place)
  if failure then
    return failure
  end
end
local stood = queue_mode == 'stand' or queue_mode == 'next'
if stood or is_next then
  if is_next then
    redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)
  end
  -- The release that notified this client removed it from the queue, but an older attempt may have put the client back.
  if stood and redis.pcall('zrem', 'leasehold_lock_queue:' .. tag, client) == 1 then
    notify_next(lock, false)
  end
  local behind = redis.pcall('zcard', 'leasehold_lock_queue:' .. tag)
  if type(behind) == 'number' then
    return {'granted', fence or '', behind + 1}
  end
end
-- Without a fence the reply is a plain word, since a table as the reply costs the server as much as a command.
return fence and {'granted', fence} or 'granted'
