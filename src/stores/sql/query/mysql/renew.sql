-- Has a lock that the owner holds run for the lease at least.
--
-- :name  :token  :owner  :lease_ms
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET expires_at = GREATEST(expires_at, {lease_end})
WHERE {held_by_owner}
