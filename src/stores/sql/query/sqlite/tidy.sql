-- Removes the entries that have ended.
DELETE FROM leasehold_locks_clients WHERE expires_at < CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
