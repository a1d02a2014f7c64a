-- Extends the expiry of an owner's lock to at least `lease_ms` from now.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count
-- ARGV[1] owner      the owner that holds the lock
-- ARGV[2] lease_ms   the minimum time that the lock shall be held from now on
--
-- Returns {'renewed'}   the lock is held for at least that time
--         {'lost'}      the owner does not hold the lock
local lock = KEYS[1]
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])

if prolong(lock, owner, lease_ms) then
  return {'renewed'}
end
return {'lost'}
