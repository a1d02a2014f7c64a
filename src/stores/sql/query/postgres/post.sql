-- Writes a client's row in the table of clients.
--
-- $1 client  $2 entry  $3 lease_ms
-- Returns the client.
INSERT INTO leasehold_locks_clients (client, entry, expires_at)
VALUES ($1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond')
ON CONFLICT (client) DO UPDATE SET entry = excluded.entry, expires_at = excluded.expires_at
RETURNING client
