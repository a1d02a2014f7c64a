-- Takes a lock for one owner, once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about -> see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] owner      who wants it
-- ARGV[2] count      the hold count that the owner shall have
-- ARGV[3] lease_ms   how long it shall run, at least
-- ARGV[4] max_ms     when the hold is to end at the latest, to be read by people; left out with what follows
-- ARGV[5] place      where its owner is, to be read by people
--
-- Returns 'granted' or {'granted', fence}   the owner has it with that count
--         {'busy', ttl_ms}                  others have it; -1: for ever
--         {'lost'}                          count above 1, but the owner has nothing
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local ttl_ms = redis.call('pttl', lock)
local held = ttl_ms ~= -2 and redis.call('hexists', lock, owner) == 1
if not held then
  if count ~= '1' then
    -- Removes nothing, but a replica refuses it: what only a replica says is no loss.
    redis.call('hdel', lock, owner)
    return {'lost'}
  end
  if ttl_ms ~= -2 then
    return {'busy', ttl_ms}
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
-- A table takes the server as long to return as a command to run.
return fence and {'granted', fence} or 'granted'
