-- Sets the end of a lock that the owner holds to rest_ms from now, even if that is sooner than before.
--
-- $1 name  $2 token  $3 owner  $4 rest_ms
-- Returns a row if the owner holds the lock.
UPDATE leasehold_locks AS held SET expires_at = {lease_end}
WHERE {held_by_owner}
RETURNING holds
