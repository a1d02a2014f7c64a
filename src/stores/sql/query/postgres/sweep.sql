-- Removes the rows of locks that ended long ago, at most a thousand. Skips rows that another transaction has locked.
--
-- $1 age_ms
-- Returns a row for each.
DELETE FROM leasehold_locks WHERE id = ANY (ARRAY(
    SELECT id FROM leasehold_locks WHERE expires_at < clock_timestamp() - $1::bigint * interval '1 millisecond'
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)) RETURNING holds
