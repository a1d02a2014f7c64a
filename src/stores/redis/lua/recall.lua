-- Begins a script that asks clients for a lock that others wait for, by a recall on the client's channel (see `line.lua`).
--
-- Holders of a read-write lock that want to hear of waiters are not in its hash, of which Redisson counts the fields:
-- `leasehold_rwlock_hearers:{name}` has each one's field -> until when in ms; below zero: it was recalled.
--
-- Returns nothing; `recall` returns whether the owner's client listened, and `recall_hearers` asks each once
local function recall(lock, owner)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. owner:sub(1, 36), 'recall')
  return type(receivers) == 'number' and receivers > 0
end

local function recall_hearers(lock)
  local hearers = 'leasehold_rwlock_hearers:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
  -- Those that were recalled come first. A crowd is asked by and by.
  local fields = redis.pcall('zrange', hearers, -100, -1, 'WITHSCORES')
  for at = 1, #fields, 2 do
    if tonumber(fields[at + 1]) > 0 then
      redis.pcall('zadd', hearers, 'XX', -fields[at + 1], fields[at])
      recall(lock, fields[at])
    end
  end
end
