-- Sets an owner's hold count to `left`; 0: frees the lock and notifies the waiters.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; leasehold:about and leasehold:cached -> see `show.lua`
-- ARGV[1] owner      who releases
-- ARGV[2] left       the hold count that shall remain
-- ARGV[3] lease_ms   the lease to set if the key has lost its expiry
-- ARGV[4] said       '1': the hash may have our notes beside the owner
-- ARGV[5] channel    where waiters listen
--
-- Returns 'freed'                the owner holds nothing now, and nobody listened
--         {'freed', listeners}   the owner holds nothing now; -1 listeners: the user may not PUBLISH; -3: the first in
--                                the wait queue was notified (see `wait_queue.lua`)
--         {'freed', listeners, 'denied'}   the same, but the user may not notify the queue
--         {'still_held'}         the owner holds it with that count, for as long as before
--         {'not_held'}           nobody holds it
--         {'not_held', holder}   another holds it; '': the user may not HKEYS
local lock = KEYS[1]
local owner, left, lease_ms, said, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- The hash has one owner: removing it and our notes deletes the key. If the owner is missing, HDEL removes nothing, but
-- makes a replica refuse the script: a replica's answer proves no loss.
local is_freed = left == '0' and redis.call('hdel', lock, owner) == 1
-- Most locks have an empty queue, and need none of the functions that `release_rest.lua` uses (see `acquire.lua`).
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
      return 'freed' -- returning a table costs the server as much as running a command
    end
    return {'freed', type(listeners) == 'number' and listeners or -1}
  end
end
