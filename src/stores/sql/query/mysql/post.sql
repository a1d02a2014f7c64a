-- Writes a client's row in the table of clients.
--
-- :client  :entry  :lease_ms
-- Changes the client's row.
INSERT INTO leasehold_locks_clients (client, entry, expires_at)
VALUES (:client, :entry, {lease_end})
ON DUPLICATE KEY UPDATE entry = VALUES(entry), expires_at = VALUES(expires_at)
