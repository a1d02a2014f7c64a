-- Prefix of scripts that free a lock whoever holds it, and may not delete anything else.
--
-- A field of a lock's hash is an owner: a client's UUID, a colon and a number, as this crate and Redisson write it, a
-- writer's with ':write' behind. `Owner::is_one` has the same rule. Other fields begin with 'leasehold:'.
--
-- Defines `is_lock`: whether a hash has an owner, or our notes on one, and nothing else; raises if the key is no hash
local function is_lock(lock)
  local has_owner = false
  for _, field in ipairs(redis.call('hkeys', lock)) do
    if #field > 37 and field:gsub(':write$', ''):find('^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$') then
      has_owner = true
    elseif field:sub(1, 10) == 'leasehold:' then
      has_owner = true -- it had one
    elseif field ~= 'mode' then
      return false
    end
  end
  return has_owner
end
