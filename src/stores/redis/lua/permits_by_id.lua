-- Releases permits by their ids, all or none; or reads or sets the remaining lease of one permit. First takes back the
-- permits whose leases have ended.
--
-- KEYS[1] permits    the number of free permits
-- KEYS[2] acquired   id of an acquired permit -> when its lease ends
-- ARGV[1] channel    the channel on which waiters listen
-- ARGV[2] what       'give_back'; 'lease': sets the lease; 'ask': reads the lease
-- ARGV[3] lease_ms   for 'lease': the remaining time for which the permit stays acquired
--         ids        all further arguments: one id of 16 bytes for each permit
--
-- Returns {'count', number}   give_back: how many came back; 0: some were not acquired, so none came back
--                             lease: 1: the lease is set; 0: the permit is not acquired
--                             ask: milliseconds until the permit's lease ends; -1: it never ends
--         {'none'}            ask: the permit is not acquired
local permits, acquired = KEYS[1], KEYS[2]
local channel, what, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ids = {unpack(ARGV, 4)}

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('zcount', acquired, 0, now_ms)
local until_ms
for _, id in ipairs(ids) do
  until_ms = tonumber(redis.call('zscore', acquired, id) or 0)
  if until_ms <= now_ms then
    until_ms = nil
    break
  end
end
-- These writes change nothing. If the user may not run the commands, the script fails here, before any change. They come
-- first: for lack of memory, Redis refuses only a script's first write, and never these.
redis.call('zrem', acquired, '')
redis.call('zremrangebyscore', acquired, 1, 0)
local is_given = what == 'give_back' and until_ms
local back = over
local seen = {}
for _, id in ipairs(is_given and ids or {}) do
  back = back + (seen[id] and 0 or 1)
  seen[id] = true
end
if back > 0 then
  -- INCRBY comes first, so that nothing is released if it fails. Without GET, it would recreate a deleted semaphore.
  local count = redis.call('get', permits) and redis.call('incrby', permits, back) or 0
  redis.call('zremrangebyscore', acquired, 0, now_ms)
  for id in pairs(seen) do
    redis.call('zrem', acquired, id)
  end
  if count > 0 then
    notify_for_permits(permits:find('{', 1, true) and permits or '{' .. permits .. '}', count)
    redis.pcall('publish', channel, count)
  end
end

if what == 'give_back' then
  return {'count', back - over}
elseif what == 'lease' then
  if until_ms then
    redis.call('zadd', acquired, 'XX', now_ms + lease_ms, ids[1])
  end
  return {'count', until_ms and 1 or 0}
elseif not until_ms then
  return {'none'}
end
-- Redisson writes 922337203685477 as the end of a lease that never ends.
return {'count', until_ms < 922337203685477 and until_ms - now_ms or -1}
