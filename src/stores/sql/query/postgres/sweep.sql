-- Removes rows of locks that have been free for long, at most a thousand. Rows in use are not waited for.
--
-- $1 age_ms
--
-- Returns a row for each.
DELETE FROM leasehold_locks WHERE id = ANY (ARRAY(
    SELECT id FROM leasehold_locks WHERE expires_at < clock_timestamp() - $1::bigint * interval '1 millisecond'
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)) RETURNING holds
