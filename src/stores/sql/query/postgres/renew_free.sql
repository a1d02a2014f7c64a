-- Does what renew.sql does, but skips a row that another transaction has locked.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms
-- Returns a row if the owner holds the lock and its row was not locked.
WITH free AS MATERIALIZED (
    SELECT id FROM leasehold_locks WHERE id = sha256($1) FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE leasehold_locks AS held SET
    expires_at = greatest(held.expires_at, {lease_end})
FROM free
WHERE held.id = free.id AND held.token = $2 AND held.owner = $3 AND held.expires_at > clock_timestamp()
RETURNING held.holds
