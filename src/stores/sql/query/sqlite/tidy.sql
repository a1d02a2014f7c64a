-- Removes the entries that have ended, those among them that a clock which was set back would keep.
DELETE FROM leasehold_locks_clients
WHERE expires_at < CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
    OR expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000
