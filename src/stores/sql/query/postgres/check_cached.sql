-- Checks whether other clients want locks that this client caches, or for which it wants recalls (recall.sql). Only reads,
-- so that the statement never waits for a row that another transaction has locked.
--
-- The statement may miss a client that joins a wait queue at the same time. Such a client then recalls the lock.
--
-- $1 names  $2 tokens  $3 owners
--    (of each lock, separated by commas; the names in hexadecimal digits)
-- $4 client
-- Returns for each lock that its owner holds: its position in the list, from 1; whether the lock has been recalled; whether
-- another client waits in its queue.
SELECT asked.at, held.keeper IS NULL, coalesce((
    SELECT max(seen) FROM leasehold_locks_wait_queue WHERE id = held.id AND client <> $4::text
) > clock_timestamp() - interval '5 seconds', false)
FROM unnest(string_to_array($1::text, ','), string_to_array($2::text, ','), string_to_array($3::text, ','))
    WITH ORDINALITY AS asked (name, token, owner, at)
JOIN leasehold_locks AS held ON held.id = sha256(decode(asked.name, 'hex'))
    AND held.token = asked.token::boolean AND held.owner = asked.owner
WHERE held.expires_at > clock_timestamp()
