-- Looks whether others want locks that their client keeps until they ask. Has the locks run for their leases from now on.
--
-- Rows that another transaction has locked are passed over.
--
-- A client that joins a line at the same time is not seen. It asks for the lock by recall.sql behind that.
--
-- Of each lock: $1 name  $2 token  $3 owner  $4 lease_ms  $5 for how many ms nobody has used it (NULL: it is in use, or was a
-- moment ago; then the lease is the least)  of all: $6 client
--
-- Returns of each that its owner holds and whose row nobody has locked: its place in the list, from 1; and whether others want it: they have asked, or stand in its
-- line.
WITH asked AS MATERIALIZED (
    SELECT held.id, asked.* FROM unnest($1::bytea[], $2::boolean[], $3::text[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
        AS asked (name, token, owner, lease_ms, unused_ms, at)
    JOIN leasehold_locks AS held ON held.id = sha256(asked.name)
    FOR NO KEY UPDATE OF held SKIP LOCKED
)
UPDATE leasehold_locks AS held SET
    expires_at = greatest(
        CASE WHEN asked.unused_ms IS NULL THEN held.expires_at END,
        clock_timestamp() + asked.lease_ms * interval '1 millisecond'
    ),
    used_at = clock_timestamp() - asked.unused_ms * interval '1 millisecond'
FROM asked
WHERE held.id = asked.id AND held.token = asked.token AND held.owner = asked.owner AND held.expires_at > clock_timestamp()
RETURNING asked.at, held.keeper IS NULL OR coalesce((
    SELECT max(seen) FROM leasehold_locks_line WHERE id = held.id AND client <> $6::text
) > clock_timestamp() - interval '5 seconds', false)
