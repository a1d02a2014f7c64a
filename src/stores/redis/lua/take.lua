-- Beginning of `acquire.lua`: takes a free lock that is reserved for nobody, as most are, without the rest. Each function that
-- a script defines costs the server up to a fifth of a command, so other prefixes of `acquire.lua` come behind this one.
--
-- KEYS[1] lock       here and below: see `acquire.lua`
-- KEYS[2] counter    left out if no fence is wanted
-- ARGV[1] owner      who wants it
-- ARGV[2] count      the hold count
-- ARGV[3] lease_ms   how long it shall run
-- ARGV[4] queue_mode  what the wait queue means to it
-- ARGV[5] max_ms     when the hold ends
-- ARGV[6] place      where the owner is
--
-- Defines `take`: makes a free lock the owner's, and returns the error that kept it from that; `tag`: the lock's, in other
-- keys; `ttl_ms`: the lock's at the beginning
local function take(lock, owner, lease_ms, max_ms, place)
  -- Raises what would fail half-way: a missing right to PEXPIRE here, missing memory by the HSET.
  if not redis.acl_check_cmd then
    -- Before Redis 7: these two write nothing to an absent key, but raise the same, the first if memory is out.
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

local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease_ms, queue_mode = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
local ttl_ms = redis.call('pttl', lock)
if ttl_ms == -2 and count == '1' and not counter and (queue_mode == 'barge' or queue_mode:find('^[wy]')) then
  if queue_mode == 'barge' or not redis.pcall('get', 'leasehold_lock_next:' .. tag) then
    return take(lock, owner, lease_ms, ARGV[5], ARGV[6]) or 'granted'
  end
end
