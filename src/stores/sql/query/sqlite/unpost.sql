-- Removes a client's entry, and those that have ended.
--
-- ?1 client
DELETE FROM leasehold_locks_clients
WHERE client = ?1 OR expires_at < CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
