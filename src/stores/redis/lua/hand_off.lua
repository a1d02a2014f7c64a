-- Passes a lock from one owner to another, who then holds it once. Repeating it changes nothing but the fence.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about and leasehold:cached -> see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] from       who holds it
-- ARGV[2] to         who shall hold it
-- ARGV[3] lease_ms   how long it shall run from now on
-- ARGV[4] max_ms     when the new hold is to end at the latest, for people to read; '': no limit. Left out with what follows
--                    if the old hold had no notes either
-- ARGV[5] place      where the new owner is, for people to read
--
-- Returns 'granted' or {'granted', fence}   the new owner holds it
--         {'lost'}                          neither holds it; nothing changed
local lock, counter = KEYS[1], KEYS[2]
local from, to, lease_ms, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('hexists', lock, from) == 0 and redis.call('hexists', lock, to) == 0 then
  -- Removes nothing, but makes a replica refuse the script: a replica's answer proves no loss.
  redis.call('hdel', lock, from)
  return {'lost'}
end

-- Expiry first: PEXPIRE passes when the server is out of memory, and so does what follows it. The expiry is not shortened
-- before the counter is used, which may fail: the old owner would then hold the lock for less time than it counts on.
local fence
if not counter then
  redis.call('pexpire', lock, lease_ms)
else
  local ttl_ms = redis.call('pttl', lock)
  redis.call('pexpire', lock, math.max(ttl_ms, tonumber(lease_ms)))
  fence = next_fence(counter)
  if ttl_ms > tonumber(lease_ms) then
    redis.call('pexpire', lock, lease_ms)
  end
end
-- The new owner is added before the old one is removed, since an empty hash would delete the key.
redis.call('hset', lock, to, 1)
redis.call('hdel', lock, from)
if max_ms == '' then
  redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')
elseif max_ms then
  local time = redis.call('time')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local about = string.format('%s %.0f %.0f %s', to, now_ms, now_ms + max_ms, place)
  redis.call('hdel', lock, 'leasehold:cached')
  redis.call('hset', lock, 'leasehold:about', about)
end
-- Returning a table costs the server as much as running a command.
return fence and {'granted', fence} or 'granted'
