-- Sets an owner's hold count to `left`. If that is 0, frees the lock and notifies the waiters.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count; for leasehold:about and leasehold:cached see `show.lua`
-- ARGV[1] owner      the owner that releases
-- ARGV[2] left       the hold count that shall remain
-- ARGV[3] lease_ms   the lease to set if the key has lost its expiry
-- ARGV[4] has_notes  '1': the hash may contain our notes beside the owner
-- ARGV[5] channel    the channel on which waiters listen
--
-- Returns 'freed'                the owner holds nothing now, and no client listened
--         {'freed', listeners}   the owner holds nothing now. listeners: how many clients received the message; -1: the
--                                user has no right to PUBLISH; -3: the first client in the wait queue was notified (see
--                                `wait_queue.lua`)
--         {'freed', listeners, 'denied'}   as above, but the user has no right to the wait queue's keys or channels
--         {'still_held'}         the owner holds the lock with the count `left`; the expiry is unchanged
--         {'not_held'}           no owner holds the lock
--         {'not_held', holder}   another owner holds the lock; holder '': the user has no right to HKEYS
local lock = KEYS[1]
local owner, left, lease_ms, has_notes, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Deleting the only owner and our notes deletes the key. If the owner is missing, HDEL changes nothing, but a replica
-- refuses it, so that no replica with stale data can report a loss.
local is_freed = left == '0' and redis.call('hdel', lock, owner) == 1
-- Most locks have an empty queue. For them the script ends here, before it defines functions, which is costly.
local first
if is_freed then
  if has_notes == '1' then
    redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')
  end
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  first = redis.pcall('zpopmin', 'leasehold_lock_queue:' .. tag)
  if not first[1] and not first.err then
    local listeners = redis.pcall('publish', channel, '0')
    if listeners == 0 then
      return 'freed' -- a table as the reply would cost the server as much as a command
    end
    return {'freed', type(listeners) == 'number' and listeners or -1}
  end
end
