-- Has the next client that waits for a lock ask its holder for it, by recall.sql. Passes over a row that another
-- transaction has locked. Nobody waits for the disk: the next look sets again what is lost in a crash.
--
-- $1 name  $2 token  $3 owner  $4 keeper: the channel on which the holder's client can be asked
--
-- Returns a row if nobody would have asked up to now.
WITH open AS MATERIALIZED (
    SELECT id FROM leasehold_locks AS held WHERE {held_by_owner} AND held.keeper IS NULL FOR UPDATE SKIP LOCKED
)
UPDATE leasehold_locks AS held SET keeper = $4 WHERE id = sha256($1) AND EXISTS (SELECT FROM open)
RETURNING set_config('synchronous_commit', 'off', true)
