-- Sets the end of a lock that the owner holds to rest_ms from now, even if that is sooner than before.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 rest_ms
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET expires_at = {now} + 1 + ?6, boot = coalesce(?1, ''), ends_up = ?2 + 1 + ?6, lease_ms = ?6
WHERE {held_by_owner}
