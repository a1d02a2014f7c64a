-- Looks whether others want locks that their client keeps until they ask, or of which the holder is to hear that. Only
-- reads, so that no row is waited for.
--
-- A client that joins a wait queue at the same time is not seen. It asks for the lock by recall.sql behind that.
--
-- $1 names  $2 tokens  $3 owners: of each lock, with commas in between, the names in hexadecimal digits
-- $4 client
--
-- Returns of each that its owner holds: its place in the list, from 1; whether others have asked for it; and whether they
-- stand in its wait queue.
SELECT asked.at, held.keeper IS NULL, coalesce((
    SELECT max(seen) FROM leasehold_locks_wait_queue WHERE id = held.id AND client <> $4::text
) > clock_timestamp() - interval '5 seconds', false)
FROM unnest(string_to_array($1::text, ','), string_to_array($2::text, ','), string_to_array($3::text, ','))
    WITH ORDINALITY AS asked (name, token, owner, at)
JOIN leasehold_locks AS held ON held.id = sha256(decode(asked.name, 'hex'))
    AND held.token = asked.token::boolean AND held.owner = asked.owner
WHERE held.expires_at > clock_timestamp()
