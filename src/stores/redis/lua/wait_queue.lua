-- Prefix of scripts that free a lock: the wait queue of its clients, first come first.
--
-- `leasehold_lock_queue:{name}` is a sorted set, client -> when it joined, by the server's clock: tenths of a millisecond
-- since second 1,700,000,000, followed by three digits: the client's link, and the last two digits of the server's second
-- of its last request. The number is exact as a double until 2052. A release removes the first client from the queue,
-- notifies it on `leasehold_wake:{name}:client`, and reserves the lock for it for 10 ms, doubled `link` times: time for the
-- message and the request. `leasehold_lock_next:{name}` names the client meanwhile. The queue only refuses and wakes;
-- whether a lock is free, its own key says.
--
-- None of these keys is among KEYS: in a cluster, one that has not moved with its slot yet would fail the script. Each
-- command on them goes by pcall. If memory is out, the user has no right, or a key holds something else, the script does
-- what it would do without a queue.
--
-- Defines `notify_next`; `popped`: what the caller has popped from the queue already. The function returns whether it
-- passed a free lock on to the first client in the queue that listens, then whether a missing right prevented that. A
-- client that hangs listens too: so a notified client leaves the queue, and in a short queue the next one gets 'standby',
-- to ask soon. For a lock that is taken, the function only sends 'standby'
local function is_denied(reply)
  -- The words of 6.2 and 7.0, and of later versions and Valkey. Other errors may pass, such as a slot that moves.
  return type(reply) == 'table' and reply.err ~= nil and
    (reply.err:find('The user executing the script', 1, true) or reply.err:find('ACL failure', 1, true)) ~= nil
end

-- Dead clients that nobody has removed yet are skipped: a thousand cost the server a few milliseconds, once.
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
      -- Back into the queue, which is a new key without an expiry if this was the only client.
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
