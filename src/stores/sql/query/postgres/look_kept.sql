-- Has a lock that the owner holds run for the lease at least, and looks whether others want it, as its client keeps it only so
-- long.
--
-- A client that joins the line at the same time is not seen. It asks for the lock by recall.sql behind that.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 for how many ms nobody has used it (NULL: it is in use)  $6 client
--
-- Returns whether others want it: they have asked, or stand in its line. No row: the owner does not hold it.
UPDATE leasehold_locks AS held SET
    expires_at = greatest(held.expires_at, clock_timestamp() + $4::bigint * interval '1 millisecond'),
    used_at = clock_timestamp() - $5::bigint * interval '1 millisecond'
WHERE id = sha256($1) AND token = $2 AND owner = $3 AND expires_at > clock_timestamp()
RETURNING held.keeper IS NULL OR coalesce((
    SELECT max(seen) FROM leasehold_locks_line WHERE id = sha256($1) AND client <> $6::text
) > clock_timestamp() - interval '5 seconds', false)
