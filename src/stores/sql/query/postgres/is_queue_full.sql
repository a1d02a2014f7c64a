-- Whether the wait queue of an election is full: three clients stand there that have asked of late.
--
-- $1 name
--
-- Returns whether it is, in one row.
SELECT count(*) = 3 FROM (
    SELECT FROM leasehold_locks_wait_queue
    WHERE id = sha256($1) AND NOT is_next AND seen > clock_timestamp() - interval '5 seconds'
    ORDER BY since, client LIMIT 3
) AS standing
