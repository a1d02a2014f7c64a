-- Removes a client from the wait queue of a lock.
--
-- $1 name  $2 client
-- Returns a row if the client was in the queue: whether it had been notified that it is next.
DELETE FROM leasehold_locks_wait_queue WHERE id = sha256($1) AND client = $2 RETURNING is_next
