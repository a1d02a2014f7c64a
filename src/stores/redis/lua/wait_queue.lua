-- Functions for scripts that free a lock. The lock has a wait queue of clients, in order of arrival. The queue only decides
-- which attempts are refused and which clients are woken. Only the lock's own key decides whether the lock is free.
--
-- `leasehold_lock_queue:{name}` is a sorted set of clients. A client's score is joined * 1000 + link * 100 + second.
-- joined: when the client joined, by the server's clock, in tenths of a millisecond since second 1,700,000,000. link: from
-- 0 to 6, how slow the client's network is. second: of the client's last attempt, modulo 100. A double holds the score
-- exactly until 2052.
--
-- A release removes the first client from the queue, notifies it on `leasehold_wake:{name}:client`, and reserves the lock
-- for it. The reservation is the key `leasehold_lock_next:{name}`, which contains the client. Its expiry is 10 ms, doubled
-- `link` times, which covers the message and the client's next attempt.
--
-- None of these keys is among KEYS: while a slot moves between nodes of a cluster, a server refuses a script that declares
-- a key which the server lacks. Each command on these keys runs by pcall: if it fails, for lack of memory or of a right or
-- because the key has another type, the script acts as if there were no queue.
--
-- Defines `notify_next`: if the lock is free, notifies the first queued client that listens; returns whether it notified a
--         client, and whether only a missing right prevented that. A client that hangs still listens, so in a short queue
--         the next client receives 'standby', and attempts a little later. If the lock is held, only sends 'standby'.
--         `popped`: the client and score that the caller has already popped from the queue, or nil
local function is_denied(reply)
  -- The first text is that of Redis 6.2 and 7.0, the second that of later versions and Valkey. Other errors may be
  -- temporary, for example while a slot moves.
  return type(reply) == 'table' and reply.err ~= nil and
    (reply.err:find('The user executing the script', 1, true) or reply.err:find('ACL failure', 1, true)) ~= nil
end

-- One call removes at most this many clients that do not listen, which takes the server a few milliseconds.
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
