-- Takes a lock for one owner, once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about and leasehold:kept -> see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner      who wants it
-- ARGV[2] count      the hold count that the owner shall have
-- ARGV[3] lease_ms   how long it shall run, at least
-- ARGV[4] turn       how it goes by the line of waiting clients (see `line.lua`). 'barge': takes a free lock, whomever it
--                    is kept for; 'spin': the same, and asks a client that keeps the lock to give it back, as all others do;
--                    'yield': leaves it to that client; 'wait': the same, and joins the line; 'stand': the same, and may
--                    stand in it already; 'next': the same, and was told that it is next, before any that it is kept for by now;
--                    'stand_for': as 'wait', for an election, but joins no line of three.
--                    The last four may end in a digit, the client's link
-- ARGV[5] max_ms     when the hold is to end at the latest, to be read by people; 'kept': its client keeps it until others
--                    ask for it, by a recall (see `recall.lua`); left out with what follows
-- ARGV[6] place      where its owner is, to be read by people
--
-- Returns 'granted' or {'granted', fence}   the owner has it with that count
--         {'granted', fence, in_line}       the same, of a client that stood in the line, as so many did, itself included;
--                                           fence '': none was wanted
--         {'busy', ttl_ms}                  others have it, or it is kept for another client; -1: for ever
--         {'in_line', ttl_ms, why}          the same, and its client stands in the line. why 'ours': the holder's release
--                                           tells the line; 'foreign': it does not; 'kept': it is free, and kept so long
--         {'in_line', ttl_ms, 'ours', 'first'}   the same, and it is the first in the line
--         {'in_line', ttl_ms, 'full'}       the same, but the client does not stand in the line
--         {'lost'}                          count above 1, but the owner has nothing
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, turn, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local link = tonumber(turn:sub(-1)) or 0
if link > 0 then
  turn = turn:sub(1, -2)
end

-- An owner is its client, a colon, and a number.
local client = owner:sub(1, 36)
local ttl_ms = redis.call('pttl', lock)
local held, holders, holder, is_kept, is_next = false, false, nil, false, false
local asks, barges = turn ~= 'barge', turn == 'barge' or turn == 'spin'
local waits = not barges and turn ~= 'yield'
if ttl_ms ~= -2 then
  -- A waiter wants to know the holders too.
  holders = asks and redis.pcall('hkeys', lock)
  if holders and not holders.err then
    for at = 1, #holders do
      local field = holders[at]
      held = held or field == owner
      is_kept = is_kept or field == 'leasehold:kept'
      holder = holder or field:sub(1, 10) ~= 'leasehold:' and field
    end
  else
    held = redis.call('hexists', lock, owner) == 1
  end
end
if not held then
  if count ~= '1' then
    -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
    redis.call('hdel', lock, owner)
    return {'lost'}
  end
  if ttl_ms ~= -2 and drop_ownerless(lock, holders) then
    ttl_ms = -2
  end
  local wait_ms, why = ttl_ms ~= -2 and ttl_ms, 'foreign'
  if wait_ms then
    -- The ids of clients whose releases tell the line are UUIDs of version 8; Redisson's, and those of
    -- versions of this crate without a line, have version 4.
    if holder and holder:find('^%x+%-%x+%-8%x%x%x%-%x+%-%x+:%d+$') and holder:sub(15, 15) == '8' then
      why = 'ours'
    end
  elseif turn == 'next' then
    is_next = true
  elseif not barges then
    wait_ms, is_next = kept_ms(lock, client)
    why = 'kept'
  end
  if wait_ms then
    -- Once: what is told is taken out. If nobody listens, the holder has seen that by itself.
    if is_kept and why == 'ours' and recall(lock, holder) then
      redis.pcall('hdel', lock, 'leasehold:kept')
    end
    if not waits then
      return {'busy', wait_ms}
    end
    local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
    local line = 'leasehold_lock_line:' .. tag
    local time = redis.pcall('time')
    if time.err then
      return {'busy', wait_ms}
    end
    local first = redis.pcall('zrange', line, 0, 0, 'WITHSCORES')
    local is_first = not first[1] or first[1] == client
    local is_stale = first[2] and is_dead(first[2], time[1])
    if turn == 'stand_for' then
      if redis.pcall('zrange', line, 2, 2)[1] and not is_stale then
        return {'in_line', wait_ms, 'full'}
      end
      turn = 'wait'
    end
    -- It keeps the place that it has. One that was told, and finds the lock taken, comes before all others.
    local place = turn == 'stand' and tonumber(redis.pcall('zadd', line, 'XX', 'INCR', 0, client))
    if not place or is_stale or place % 100 ~= time[1] % 100 then
      local joined = place or turn == 'next' and first[2] and first[2] - 1000
      joined = joined or (time[1] - 1700000000) * 10000000 + time[2] * 10
      local added = redis.pcall('zadd', line, place and 'XX' or 'NX', place_score(joined, link, time[1]), client)
      if type(added) ~= 'number' then
        return {'busy', wait_ms}
      end
      -- A client that joins others that live need not move the end on: they do.
      if (turn ~= 'wait' or is_stale or not first[1]) and redis.pcall('pexpire', line, 60000) ~= 1 then
        redis.pcall('zrem', line, client)
        return {'busy', wait_ms}
      end
      is_first = is_first or turn == 'next'
      -- The first clears up behind itself when it asks again. If the first is dead, anybody does.
      if is_stale or is_first and turn ~= 'wait' then
        is_first = drop_dead(line, time[1]) == client
      end
    end
    if is_first and why == 'ours' then
      return {'in_line', wait_ms, why, 'first'}
    end
    return {'in_line', wait_ms, why}
  end
end

-- The fence first: a counter that cannot be used refuses before anything of the lock is written.
local fence = counter and next_fence(counter)

if held then
  -- Time first, count second: PEXPIRE passes when the server is out of memory, and what follows it passes
  -- too.
  redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))
  redis.call('hset', lock, owner, count)
else
  -- Errors that would come half-way are raised before: if the user may not PEXPIRE, here; if memory is out,
  -- by the HSET.
  if not redis.acl_check_cmd then
    -- Before Redis 7, on an absent key these two write nothing, but raise the same: the first if memory is
    -- out.
    redis.call('set', lock, '', 'XX')
    redis.call('pexpire', lock, lease_ms)
  elseif not redis.acl_check_cmd('pexpire', lock, lease_ms) then
    return redis.pcall('pexpire', lock, lease_ms)
  end
  if max_ms == 'kept' then
    redis.call('hset', lock, owner, count, 'leasehold:kept', '')
  elseif max_ms then
    local time = redis.call('time')
    local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
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
end
local stood = turn == 'stand' or turn == 'next'
if stood or is_next then
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  if is_next then
    redis.pcall('pexpire', 'leasehold_lock_next:' .. tag, 0)
  end
  -- One that was told was taken out of the line then, but a request that was on its way brings it back.
  if stood and redis.pcall('zrem', 'leasehold_lock_line:' .. tag, client) == 1 then
    tell_line(lock, false)
  end
  local behind = redis.pcall('zcard', 'leasehold_lock_line:' .. tag)
  if type(behind) == 'number' then
    return {'granted', fence or '', behind + 1}
  end
end
-- A table takes the server as long to return as a command to run.
return fence and {'granted', fence} or 'granted'
