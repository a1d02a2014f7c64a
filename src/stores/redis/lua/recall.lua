-- Prefix of scripts that recall a lock: a message on the holder's client's channel (see `wait_queue.lua`) says that another
-- client waits.
--
-- Defines `recall`: whether the owner's client listened
local function recall(lock, owner)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. owner:sub(1, 36), 'recall')
  return type(receivers) == 'number' and receivers > 0
end
