-- Prefix of scripts that free a lock. The lock has a wait queue of clients, in order of arrival.
--
-- `leasehold_lock_queue:{name}` is a sorted set of clients. A client's score is the time when it joined, by the server's
-- clock, in tenths of a millisecond since second 1,700,000,000, followed by three digits: the client's link, which is the
-- class of its network delay (0 to 6), and the last two digits of the server's second of its last attempt. A double holds
-- the score exactly until 2052. A release removes the first client from the queue, notifies it on
-- `leasehold_wake:{name}:client`, and reserves the lock for it. The reservation lasts 10 ms, doubled `link` times, which
-- covers the message and the client's next attempt. Meanwhile `leasehold_lock_next:{name}` contains the client. The queue
-- only decides which attempts are refused and which clients are woken. Only the lock's own key decides whether the lock is
-- free.
--
-- None of these keys is among KEYS: while a slot moves between nodes of a cluster, a server refuses a script that declares
-- a key which the server lacks. Each command on these keys runs by pcall: if it fails, for lack of memory or of a right or
-- because the key has another type, the script acts as if there were no queue.
--
-- Defines `notify_next`. `popped` is the entry that the caller has already popped from the queue, or nil. If the lock is
-- free, the function notifies the first queued client that listens. It returns whether a client was notified, then whether
-- only a missing right prevented that. A client that hangs still counts as listening. Therefore a notified client leaves
-- the queue, and in a short queue the next client receives 'standby', so that it attempts soon. If the lock is held, the
-- function only sends 'standby'
local function is_denied(reply)
  -- The first text is that of Redis 6.2 and 7.0, the second that of later versions and Valkey. Other errors may be
  -- temporary, for example while a slot moves.
  return type(reply) == 'table' and reply.err ~= nil and
    (reply.err:find('The user executing the script', 1, true) or reply.err:find('ACL failure', 1, true)) ~= nil
end

-- How many dead clients one call skips and removes at most. A thousand cost the server a few milliseconds, once.
local MOST_PASSED_OVER = 1024

local function notify_next(lock, is_free, popped)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local queue, wake = 'leasehold_lock_queue:' .. tag, 'leasehold_wake:' .. tag .. ':'
  local is_passed_on = false
  for _ = 1, is_free and MOST_PASSED_OVER or 0 do
    local first = popped or redis.pcall('zpopmin', queue)
    popped = nil
    local client = first[1]
    if not client then
      return false, is_denied(first)
    end
    local receivers = redis.pcall('publish', wake .. client, 'next')
    if type(receivers) ~= 'number' then
      -- Puts the client back. If the queue had become empty, ZADD makes a key without an expiry, so PEXPIRE follows.
      redis.pcall('zadd', queue, first[2], client)
      redis.pcall('pexpire', queue, 60000)
      return false, is_denied(receivers)
    end
    if receivers > 0 then
      local link = math.min(math.floor(first[2] % 1000 / 100), 6)
      redis.pcall('set', 'leasehold_lock_next:' .. tag, client, 'PX', 10 * 2 ^ link)
      is_passed_on = true
      break
    end
  end
  stand_by(tag, true)
  return is_passed_on, false
end
