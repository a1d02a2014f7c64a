-- Writes a client's row in the table of clients.
--
-- ?1 client  ?2 entry  ?3 lease_ms
-- Changes the client's row.
INSERT INTO leasehold_locks_clients (client, entry, expires_at, lease_ms)
VALUES (?1, ?2, {now} + ?3, ?3)
ON CONFLICT (client) DO UPDATE SET
    entry = excluded.entry, expires_at = excluded.expires_at, lease_ms = excluded.lease_ms
