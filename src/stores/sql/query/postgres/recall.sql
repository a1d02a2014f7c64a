-- Recalls a cached lock: asks the client that caches it to release it, once for each hold.
--
-- The commit does not wait for the disk: if a crash undoes the recall, the next check by the lock's client finds the
-- waiter.
--
-- $1 name  $2 keeper: the channel on which the lock's client receives a recall
-- Returns a row if the recall was sent.
UPDATE leasehold_locks SET keeper = NULL
WHERE id = sha256($1) AND keeper = $2::text AND owner <> '' AND expires_at > clock_timestamp()
RETURNING set_config('synchronous_commit', 'off', true), pg_notify($2, 'recall')::text
