-- Asks the client that keeps a lock for it, once for each hold.
--
-- Nobody waits for the disk: what is lost in a crash is seen by the next look.
--
-- $1 name  $2 keeper: the channel on which that client can be asked
--
-- Returns a row if it was asked.
UPDATE leasehold_locks SET keeper = NULL
WHERE id = sha256($1) AND keeper = $2::text AND owner <> '' AND expires_at > clock_timestamp()
RETURNING set_config('synchronous_commit', 'off', true), pg_notify($2, 'recall')::text
