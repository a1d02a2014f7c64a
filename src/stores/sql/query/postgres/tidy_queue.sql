-- Removes the entries of clients that were killed in line, a thousand at most. Entries in use are not waited
-- for.
--
-- Returns the client of each.
DELETE FROM leasehold_locks_line WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM leasehold_locks_line WHERE seen < clock_timestamp() - interval '1 minute'
    LIMIT 1000 FOR UPDATE SKIP LOCKED
)) RETURNING client
