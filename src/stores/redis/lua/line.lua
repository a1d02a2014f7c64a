-- Begins a script that frees a lock: the line of the clients that wait for it, first come first.
--
-- `leasehold_lock_line:{name}` is a sorted set, client -> when it joined, by the server's clock: tenths of a
-- millisecond since second 1,700,000,000, and three digits behind them, the client's link and the last two of the
-- server's second when it last asked. So the number is exact as a double until 2052. A release
-- takes the first out of the line, tells it on `leasehold_wake:{name}:client`, and reserves the lock for it for 10 ms,
-- doubled as often as its link says: time for the message and the request. `leasehold_lock_next:{name}` names it then.
-- The line only refuses and wakes. Whether a lock is free, its own key says.
--
-- No key of it is among KEYS: in a cluster one that has not come along with its slot yet would fail the
-- script. Each command on them goes by pcall, and what it returns is looked at: if memory is out, the user
-- may not, or a key holds something else, then there is no line, and the script does what it does without
-- one.
--
-- Returns nothing; `tell_line` says whether it passed a free lock on to the first in the line who listens, then whether it
-- could not since the user may not. A client that hangs listens too: so that one is out of the line when told, and the one
-- behind it is told to ask soon if the line is short. Of a lock that is taken only that is said
local function is_denied(reply)
  -- As 6.2 and 7.0 put it; as later versions and Valkey do. All else may pass: a slot that moves, say.
  return type(reply) == 'table' and reply.err ~= nil and
    (reply.err:find('The user executing the script', 1, true) or reply.err:find('ACL failure', 1, true)) ~= nil
end

-- The dead whom nobody has taken out yet are passed over: a thousand cost the server a few milliseconds,
-- once.
local MOST_PASSED_OVER = 1024

local function tell_line(lock, is_free)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local line, wake = 'leasehold_lock_line:' .. tag, 'leasehold_wake:' .. tag .. ':'
  local is_passed_on = false
  for _ = 1, is_free and MOST_PASSED_OVER or 0 do
    local first = redis.pcall('zpopmin', line)
    local client = first[1]
    if not client then
      return false, is_denied(first)
    end
    local receivers = redis.pcall('publish', wake .. client, 'next')
    if type(receivers) ~= 'number' then
      -- It may have been the only one: then the line that it comes back into is a new key, without an end.
      redis.pcall('zadd', line, first[2], client)
      redis.pcall('pexpire', line, 60000)
      return false, is_denied(receivers)
    end
    if receivers > 0 then
      local link = math.min(math.floor(first[2] % 1000 / 100), 6)
      redis.pcall('set', 'leasehold_lock_next:' .. tag, client, 'PX', 10 * 2 ^ link)
      is_passed_on = true
      break
    end
  end
  local behind = redis.pcall('zrange', line, 0, 8)
  if #behind <= 8 then
    for at = 1, #behind do
      -- The first of them who lives.
      if redis.pcall('publish', wake .. behind[at], 'standby') ~= 0 then
        break
      end
    end
  end
  return is_passed_on, false
end
