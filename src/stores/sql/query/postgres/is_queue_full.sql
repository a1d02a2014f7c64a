-- Reads whether the wait queue of an election (client.leader) is full: it contains three clients that have made an attempt
-- in the last 5 s. Other candidates stay outside and ask again later.
--
-- $1 name
-- Returns one row: whether the queue is full.
SELECT count(*) = 3 FROM (
    SELECT FROM leasehold_locks_wait_queue
    WHERE id = sha256($1) AND NOT is_next AND seen > clock_timestamp() - interval '5 seconds'
    ORDER BY since, client LIMIT 3
) AS standing
