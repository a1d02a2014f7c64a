-- Prefix of scripts that take a free lock, unless it is reserved for the client that is next in its wait queue (see
-- `wait_queue.lua`).
--
-- Defines `drop_ownerless`: deletes a hash that has our notes on an owner who is gone and nothing else, which would keep all
-- others out, and returns whether it did. `reserved_ms`: for how many more milliseconds a free lock is reserved for another
-- client than this, or nil; then whether it is reserved for this one. Longer times than 640 ms do not count: where clocks
-- differ, a promoted replica may extend them
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
