-- Beginning of `release.lua`: frees a lock that nobody waits for in the queue without the rest, as `take.lua` takes one.
--
-- KEYS[1] lock       here and below: see `release.lua`
-- ARGV[1] owner      who releases
-- ARGV[2] left       the hold count
-- ARGV[4] said       the hash may have our notes
-- ARGV[5] channel    where waiters listen
--
-- Defines `is_freed`: the owner held the lock and does no more; `first`: the client popped from the queue then
local lock = KEYS[1]
local owner, left, said, channel = ARGV[1], ARGV[2], ARGV[4], ARGV[5]

-- A hash has one owner: the key goes with it and our notes. If the owner is not there, nothing is removed, but a replica
-- refuses all the same: an answer of a replica is no loss.
local is_freed = left == '0' and redis.call('hdel', lock, owner) == 1
local first
if is_freed then
  if said == '1' then
    redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')
  end
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  first = redis.pcall('zpopmin', 'leasehold_lock_queue:' .. tag)
  if not first[1] and not first.err then
    local listeners = redis.pcall('publish', channel, '0')
    if listeners == 0 then
      return 'freed' -- a table takes the server as long to return as a command to run
    end
    return {'freed', type(listeners) == 'number' and listeners or -1}
  end
end
