-- Writes the holder's channel into a lock's row, so that the next client that waits recalls the lock (recall.sql). Skips a
-- row that another transaction has locked. The commit does not wait for the disk: if a crash undoes the write, the holder's
-- next check repeats it.
--
-- $1 name  $2 token  $3 owner  $4 keeper: the channel on which the holder's client receives a recall
-- Returns a row if the channel was missing until now, so that waiters may have come without a recall.
WITH open AS MATERIALIZED (
    SELECT id FROM leasehold_locks AS held WHERE {held_by_owner} AND held.keeper IS NULL FOR UPDATE SKIP LOCKED
)
UPDATE leasehold_locks AS held SET keeper = $4 WHERE id = sha256($1) AND EXISTS (SELECT FROM open)
RETURNING set_config('synchronous_commit', 'off', true)
