-- Takes several locks in order, each for a new owner, up to the first one that is held or reserved for another client (see
-- `reserved.lua`). With `or_none`, takes all locks or none.
--
-- KEYS[at]       lock       the hash of lock `at` (1, 2, …): owner -> hold count; fence counters follow after all locks
-- KEYS[number]   counter    the fence counter of a lock for which a fence is wanted
-- ARGV[1]        or_none    '1': takes all locks or none, even reserved ones, as 'barge' in `acquire.lua`
-- ARGV[2]        locks      the number of locks
-- ARGV[3*at]     owner      the owner that wants the lock
-- ARGV[3*at+1]   lease_ms   the time that the lock shall be held from now on
-- ARGV[3*at+2]   number     the index in KEYS of the lock's counter; '0': no fence is wanted
--
-- Returns {'granted', fence, ...}   for each lock that was taken, its fence, or '' if none was wanted
local or_none, locks = ARGV[1], tonumber(ARGV[2])

local free = locks
for at = 1, locks do
  local lock = KEYS[at]
  local is_held = redis.call('pttl', lock) ~= -2 and not drop_ownerless(lock)
  if is_held or or_none ~= '1' and reserved_ms(lock, ARGV[3*at]:sub(1, 36)) then
    if is_held then
      redis.call('hexists', lock, '') -- raises an error if the key is no hash: such a key is not a busy lock
    end
    free = at - 1
    break
  end
end
if free < locks and or_none == '1' then
  free = 0
end

-- The first error. After an error, `ask` sends no further command.
local failed
local function ask(...)
  if failed then
    return
  end
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    failed = answer
  end
  return answer
end

local fences = {'granted'}
for at = 1, free do
  local lock, owner, lease_ms = KEYS[at], ARGV[3*at], ARGV[3*at+1]
  local number = tonumber(ARGV[3*at+2])
  local counter = KEYS[number]
  if at == 1 then
    -- Raises errors before HSET creates a lock without an expiry, as `take` in `acquire.lua` does.
    if not redis.acl_check_cmd then
      redis.call('set', lock, '', 'XX')
      redis.call('pexpire', lock, lease_ms)
    elseif not redis.acl_check_cmd('pexpire', lock, lease_ms) then
      return redis.pcall('pexpire', lock, lease_ms)
    end
  end
  local fence = ''
  if counter then
    local count, time = ask('incr', counter), ask('time')
    if not failed then
      local now_us = time[1] * 1000000 + time[2]
      if count < now_us then
        fence = string.format('%.0f', now_us)
        ask('set', counter, fence)
      else
        fence = ask('get', counter)
      end
    end
  end
  ask('hset', lock, owner, '1')
  ask('pexpire', lock, lease_ms)
  if failed then
    for at = 1, at do
      redis.call('del', KEYS[at])
    end
    return failed
  end
  fences[at + 1] = fence
end
return fences
