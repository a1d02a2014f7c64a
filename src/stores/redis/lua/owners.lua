-- Begins a script that frees a lock whoever holds it: what is no lock is not its to delete.
--
-- A lock's hash has owners, each a client's UUID, a colon and a number, as this crate and Redisson write
-- them; of a writer with ':write' behind. Beside them is what says of the hold what it is. So `Owner::is_one`
-- sees it too.
--
-- Returns nothing; the function returns whether a hash has owners, or what was said of one, and nothing else; it raises
--         for what is no hash
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
