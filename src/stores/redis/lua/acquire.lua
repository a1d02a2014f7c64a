-- Takes a lock for one owner, once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about -> see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner      who wants it
-- ARGV[2] count      the hold count that the owner shall have
-- ARGV[3] lease_ms   how long it shall run, at least
-- ARGV[4] turn       how it goes by the line of waiting clients (see `line.lua`). '0': takes a free lock, whomever it is
--                    kept for; '1': leaves it to that client; '2': the same, and joins the line; '3': the same, and may
--                    stand in it already; '4': the same, and was told that it is next
-- ARGV[5] max_ms     when the hold is to end at the latest, to be read by people; left out with what follows
-- ARGV[6] place      where its owner is, to be read by people
--
-- Returns 'granted' or {'granted', fence}   the owner has it with that count
--         {'busy', ttl_ms}                  others have it, or it is kept for another client; -1: for ever
--         {'in_line', ttl_ms, why}          the same, and its client stands in the line. why 'ours': the holder's release
--                                           tells the line; 'foreign': it does not; 'kept': it is free, and kept so long
--         {'lost'}                          count above 1, but the owner has nothing
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, turn, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- Whether the client stands in the line from now on. It keeps its place there; one that was told, and found the lock
-- taken, comes before all others.
local function join_line(lock, client, comes_first)
  local line = line_of(lock)
  local joined_us
  if comes_first then
    local first = redis.pcall('zrange', line, 0, 0, 'WITHSCORES')
    joined_us = first[2] and first[2] - 1
  end
  if not joined_us then
    local time = redis.call('time')
    joined_us = time[1] * 1000000 + time[2]
  end
  local added = redis.pcall('zadd', line, 'NX', string.format('%.0f', joined_us), client)
  if type(added) ~= 'number' then
    return false
  end
  if redis.pcall('pexpire', line, 60000) ~= 1 then
    redis.pcall('zrem', line, client)
    return false
  end
  return true
end

-- Whether the holder's release tells the line: the ids of clients that do are UUIDs of version 8, Redisson's and those of
-- older versions of this crate have version 4.
local function tells_line(lock)
  local holders = redis.pcall('hkeys', lock)
  local holder = holders[1] == 'leasehold:about' and holders[2] or holders[1]
  return holder and holder:sub(15, 15) == '8'
end

-- An owner is its client, a colon, and a number.
local client = owner:sub(1, 36)
local ttl_ms = redis.call('pttl', lock)
local is_next = false
local held = ttl_ms ~= -2 and redis.call('hexists', lock, owner) == 1
if not held then
  if count ~= '1' then
    -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
    redis.call('hdel', lock, owner)
    return {'lost'}
  end
  local wait_ms, is_kept = ttl_ms ~= -2 and ttl_ms, false
  if not wait_ms and turn ~= '0' then
    wait_ms, is_next = kept_ms(lock, client)
    is_kept = wait_ms ~= nil
  end
  if wait_ms then
    if turn < '2' or not join_line(lock, client, turn == '4') then
      return {'busy', wait_ms}
    end
    return {'in_line', wait_ms, is_kept and 'kept' or tells_line(lock) and 'ours' or 'foreign'}
  end
end

-- The fence first: a counter that cannot be used refuses before anything of the lock is written.
local fence = counter and next_fence(counter)

if held then
  -- Time first, count second: PEXPIRE passes when the server is out of memory, and what follows it passes too.
  redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))
  redis.call('hset', lock, owner, count)
else
  -- Errors that would come half-way are raised before: if the user may not PEXPIRE, here; if memory is out, by the HSET.
  if not redis.acl_check_cmd then
    -- Before Redis 7, on an absent key these two write nothing, but raise the same: the first if memory is out.
    redis.call('set', lock, '', 'XX')
    redis.call('pexpire', lock, lease_ms)
  elseif not redis.acl_check_cmd('pexpire', lock, lease_ms) then
    return redis.pcall('pexpire', lock, lease_ms)
  end
  if max_ms then
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
if is_next then
  redis.pcall('del', next_of(lock))
end
if turn == '3' and redis.pcall('zrem', line_of(lock), client) == 1 then
  prepare_next(lock, line_of(lock))
end
-- A table takes the server as long to return as a command to run.
return fence and {'granted', fence} or 'granted'
