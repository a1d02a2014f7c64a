-- Extends a lock that the owner holds to at least a lease from now.
--
-- :name  :token  :owner  :lease_ms
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET expires_at = GREATEST(expires_at, {lease_end})
WHERE {held_by_owner}
