-- Functions for scripts that send recalls. A recall is a message on the channel of the holder's client (see
-- `wait_queue.lua`): another client waits for the lock, so a client that only caches the lock releases it.
--
-- Defines `recall`: sends the message, and returns whether the owner's client listened
local function recall(lock, owner)
  local tag = lock:find('{', 1, true) and lock or '{' .. lock .. '}'
  local receivers = redis.pcall('publish', 'leasehold_wake:' .. tag .. ':' .. owner:sub(1, 36), 'recall')
  return type(receivers) == 'number' and receivers > 0
end
