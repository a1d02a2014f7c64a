-- Has a lock that the owner holds end by itself after the rest that is given, sooner or later than it would.
--
-- $1 name  $2 token  $3 owner  $4 rest_ms
--
-- Returns a row if the owner holds it.
UPDATE leasehold_locks AS held SET expires_at = {lease_end}
WHERE {held_by_owner}
RETURNING holds
