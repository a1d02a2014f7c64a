-- Begins a script that asks for a lock or frees it: the line of the clients that wait for it, first come first.
--
-- The line is a sorted set, client -> the server's microseconds when it joined. A release takes the first out of it, tells
-- it, and keeps the lock for it for 10 ms. The line only refuses and wakes: whether a lock is free, its own key says.
--
-- Neither key of it is among KEYS: in a cluster one that has not come along with its slot yet would fail the script. Each
-- command on them goes by pcall, and what it returns is looked at: if memory is out, the user may not, or a key holds
-- something else, then there is no line, and the script does what it does without one.
--
-- Returns nothing; what the functions return is said at each
local function line_of(lock)
  return 'leasehold_lock_line:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
end

local function next_of(lock)
  return 'leasehold_lock_next:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
end

-- How many receive it; a table if the user may not.
local function say(lock, client, word)
  return redis.pcall('publish', 'leasehold_wake:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. client, word)
end

-- Has the first of a short line ask soon, told or not: the client that was told may be one that hangs.
local function prepare_next(lock, line)
  local waiting = redis.pcall('zrange', line, 0, 8)
  if waiting[1] and #waiting <= 8 then
    say(lock, waiting[1], 'standby')
  end
end

-- Passes a lock that is free on to the first in the line who listens; whether there is one. Out of the line when told: a
-- client that hangs still counts as a receiver.
local function tell_next(lock)
  local line = line_of(lock)
  for _ = 1, 8 do
    local popped = redis.pcall('zpopmin', line)
    local client = popped[1]
    if not client then
      return false
    end
    local receivers = say(lock, client, 'next')
    if type(receivers) ~= 'number' then
      redis.pcall('zadd', line, popped[2], client)
      return false
    end
    if receivers > 0 then
      redis.pcall('set', next_of(lock), client, 'PX', 10)
      prepare_next(lock, line)
      return true
    end
  end
  return false
end

-- For how many more milliseconds a free lock is kept for another client than this; nil: it is not. Never for long: where
-- clocks differ a promoted replica may keep it for longer than was said.
local function kept_ms(lock, client)
  local kept = redis.pcall('get', next_of(lock))
  if type(kept) == 'string' and kept ~= client then
    local left_ms = redis.pcall('pttl', next_of(lock))
    if type(left_ms) == 'number' and left_ms > 0 and left_ms <= 50 then
      return left_ms
    end
  end
  return nil, kept == client
end
