-- Has a lock that the owner holds run for the lease at least.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    expires_at = max(expires_at, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) + 1 + ?4)
WHERE name = ?1 AND token = ?2 AND owner = ?3 AND expires_at > CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
