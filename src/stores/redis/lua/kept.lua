-- Begins a script that takes a free lock, unless it is kept for the client that is next in its line (see
-- `line.lua`).
--
-- Returns nothing; the function returns for how many more milliseconds a free lock is kept for another client than this,
-- or nil; then whether it is kept for this one. Never for long: where clocks differ a promoted replica may keep it for
-- longer than was said
local function kept_ms(lock, client)
  local next_key = 'leasehold_lock_next:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
  local kept = redis.pcall('get', next_key)
  if kept == client then
    return nil, true
  end
  if type(kept) == 'string' then
    local left_ms = redis.pcall('pttl', next_key)
    if type(left_ms) == 'number' and left_ms > 0 and left_ms <= 50 then
      return left_ms, false
    end
  end
  return nil, false
end
