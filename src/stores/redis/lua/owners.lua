-- Functions for scripts that free a lock whoever holds it. These scripts must not delete a key that is no lock.
--
-- Each owner is a field of a lock's hash. This crate and Redisson write an owner as a client's UUID, a colon and a number,
-- and append ':write' for a writer (`Owner::is_one` has the same rule). The names of our notes begin with 'leasehold:'.
--
-- Defines `is_lock`: whether a hash contains only owners and our notes, at least one of them; raises an error if the key is
-- no hash
local function is_lock(lock)
  local has_owner = false
  for _, field in ipairs(redis.call('hkeys', lock)) do
    if #field > 37 and field:gsub(':write$', ''):find('^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$') then
      has_owner = true
    elseif field:sub(1, 10) == 'leasehold:' then
      has_owner = true -- notes alone are a lock whose owner is gone
    elseif field ~= 'mode' then
      return false
    end
  end
  return has_owner
end
