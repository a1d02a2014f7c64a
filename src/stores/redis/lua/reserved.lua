-- Functions for scripts that take a free lock, unless the lock is reserved for another client of its wait queue (see
-- `wait_queue.lua`).
--
-- Defines `drop_ownerless`: deletes a hash that has only our notes on an owner who is gone, since such a hash would block
--         all clients; returns whether it did
--         `reserved_ms`: returns for how many more milliseconds a free lock is reserved for another client, or nil; and
--         whether the lock is reserved for this client. No reservation is made for more than 640 ms; a longer one, on a
--         promoted replica whose clock is behind, is ignored
local function drop_ownerless(lock, fields)
  fields = fields or redis.pcall('hkeys', lock)
  for at = 1, #fields do
    if fields[at]:sub(1, 10) ~= 'leasehold:' then
      return false
    end
  end
  return #fields > 0 and redis.call('del', lock) == 1
end

local function reserved_ms(lock, client)
  local next_key = 'leasehold_lock_next:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
  local next_client = redis.pcall('get', next_key)
  if next_client == client then
    return nil, true
  end
  if type(next_client) == 'string' then
    local left_ms = redis.pcall('pttl', next_key)
    if type(left_ms) == 'number' and left_ms > 0 and left_ms <= 640 then
      return left_ms, false
    end
  end
  return nil, false
end
