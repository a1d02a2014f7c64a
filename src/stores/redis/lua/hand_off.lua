-- Passes a lock from one owner to another, who then holds it with count 1. A repeated request sets the lease again,
-- and issues a new fencing token (fence).
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; for leasehold:about and leasehold:cached see `show.lua`
-- KEYS[2] counter    the lock's fence counter; left out if no fence is wanted
-- ARGV[1] from       the owner that holds the lock
-- ARGV[2] to         the owner that shall hold the lock
-- ARGV[3] lease_ms   the time that the lock shall be held from now on
-- ARGV[4] max_ms     in how many ms the new hold ends at the latest, for people to read; '': removes the old hold's note.
--                    Left out, as is `place`, if neither hold has a note
-- ARGV[5] place      where the new owner runs, for people to read
--
-- Returns 'granted' or {'granted', fence}   the new owner holds the lock
--         {'lost'}                          neither owner holds the lock; nothing changed
local lock, counter = KEYS[1], KEYS[2]
local from, to, lease_ms, max_ms, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if redis.call('hexists', lock, from) == 0 and redis.call('hexists', lock, to) == 0 then
  -- This write changes nothing. A replica refuses it, so that no replica with stale data can report a loss.
  redis.call('hdel', lock, from)
  return {'lost'}
end

-- PEXPIRE comes first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE. The expiry
-- is shortened only after the fence was issued, so that the old owner keeps its lease if the counter fails.
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
-- Adds the new owner before the old one is deleted, since Redis deletes a hash that becomes empty.
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
-- Without a fence the reply is a plain word, since a table as the reply costs the server as much as a command.
return fence and {'granted', fence} or 'granted'
