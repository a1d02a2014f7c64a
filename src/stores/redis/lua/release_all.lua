-- Frees several locks of the given owners, and notifies the waiters of each lock.
--
-- KEYS[at]       lock      the hash of lock `at` (1, 2, …): owner -> hold count
-- ARGV[2*at-1]   owner     the owner that releases this lock
-- ARGV[2*at]     channel   the channel on which this lock's waiters listen
--
-- Returns {'freed', listeners, ...}   for each lock, how many clients received the message. -1: the user has no right to
--                                     PUBLISH; -2: the owner did not hold the lock; -3: the first client in the wait queue
--                                     was notified (see `wait_queue.lua`)
--         {'freed', listeners, ..., 'denied'}   as above, but the user has no right to a wait queue's keys or channels
local replies, is_unnotified = {'freed'}, false
for at = 1, #KEYS do
  local lock, owner, channel = KEYS[at], ARGV[2*at-1], ARGV[2*at]
  local listeners = -2
  -- If the first HDEL fails, perhaps for lack of a right, the whole script fails, before it has freed a lock. Each later
  -- key that is no hash counts as a lock that is not held.
  local removed = at == 1 and redis.call('hdel', lock, owner) or redis.pcall('hdel', lock, owner)
  if removed == 1 then
    -- Any request of this owner may have written notes, and a hash of notes alone would block Redisson's clients.
    redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')
    local is_notified, is_denied_here = notify_next(lock, true)
    is_unnotified = is_unnotified or is_denied_here
    listeners = redis.pcall('publish', channel, '0')
    if is_notified then
      listeners = -3
    elseif type(listeners) ~= 'number' then
      listeners = -1
    end
  end
  replies[at + 1] = listeners
end
if is_unnotified then
  replies[#replies + 1] = 'denied'
end
return replies
