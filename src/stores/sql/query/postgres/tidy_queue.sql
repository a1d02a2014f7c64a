-- Removes clients that died in a wait queue, at most a thousand. Skips rows that another transaction has locked.
-- Returns the client of each.
DELETE FROM leasehold_locks_wait_queue WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM leasehold_locks_wait_queue WHERE seen < clock_timestamp() - interval '1 minute'
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)) RETURNING client
