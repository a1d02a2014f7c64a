-- Prefix of scripts that recall a lock: a message on the holder's client's channel (see `wait_queue.lua`) says that another
-- client waits.
--
-- Redisson counts the fields of a read-write lock's hash, so the holders that want to hear of waiters are elsewhere:
-- `leasehold_rwlock_hearers:{name}`, a sorted set, holder's field -> until when, in ms; negative: already recalled.
--
-- Defines `recall`: whether the owner's client listened; `recall_hearers`: recalls each once
local function recall(lock, owner)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. owner:sub(1, 36), 'recall')
  return type(receivers) == 'number' and receivers > 0
end

local function recall_hearers(lock)
  local hearers = 'leasehold_rwlock_hearers:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
  -- Those already recalled come first. At most a hundred at a time.
  local fields = redis.pcall('zrange', hearers, -100, -1, 'WITHSCORES')
  for at = 1, #fields, 2 do
    if tonumber(fields[at + 1]) > 0 then
      redis.pcall('zadd', hearers, 'XX', -fields[at + 1], fields[at])
      recall(lock, fields[at])
    end
  end
end
