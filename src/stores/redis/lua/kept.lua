-- Begins a script that takes a free lock, unless it is kept for the client that is next in its line (see
-- `line.lua`).
--
-- Returns nothing. `drop_ownerless` returns whether the hash had our notes on an owner that is gone and nothing else; it
-- drops such a hash, which would keep all others out. `kept_ms` returns for how many more milliseconds a free lock is kept
-- for another client than this, or nil; then whether it is kept for this one. Never for long: where clocks differ a
-- promoted replica may keep it for longer than was said
local function drop_ownerless(lock, fields)
  fields = fields or redis.pcall('hkeys', lock)
  for at = 1, #fields do
    if fields[at]:sub(1, 10) ~= 'leasehold:' then
      return false
    end
  end
  return #fields > 0 and redis.call('del', lock) == 1
end

local function kept_ms(lock, client)
  local next_key = 'leasehold_lock_next:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
  local kept = redis.pcall('get', next_key)
  if kept == client then
    return nil, true
  end
  if type(kept) == 'string' then
    local left_ms = redis.pcall('pttl', next_key)
    if type(left_ms) == 'number' and left_ms > 0 and left_ms <= 640 then
      return left_ms, false
    end
  end
  return nil, false
end
