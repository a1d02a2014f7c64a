-- Extends an owner's lock to at least a lease from now.
--
-- KEYS[1] lock       the lock's hash: owner -> hold count
-- ARGV[1] owner      who holds it
-- ARGV[2] lease_ms   how long it shall run, at least
--
-- Returns {'renewed'}   it does
--         {'lost'}      the owner does not hold it
local lock = KEYS[1]
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])

if prolong(lock, owner, lease_ms) then
  return {'renewed'}
end
return {'lost'}
