-- Removes the entries of clients that were killed in wait queue, a thousand at most. Entries in use are not waited
-- for.
--
-- Returns the client of each.
DELETE FROM leasehold_locks_wait_queue WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM leasehold_locks_wait_queue WHERE seen < clock_timestamp() - interval '1 minute'
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)) RETURNING client
