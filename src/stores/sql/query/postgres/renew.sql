-- Extends a lock that the owner holds to at least a lease from now.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 wait_ms: how long to wait for a row that another transaction has locked
-- Returns a row if the owner holds the lock.
WITH limits AS MATERIALIZED (SELECT set_config('lock_timeout', ($5::bigint)::text, true))
UPDATE leasehold_locks AS held SET
    expires_at = greatest(held.expires_at, {lease_end})
FROM limits
WHERE held.{held_by_owner}
RETURNING held.holds
