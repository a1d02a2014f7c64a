-- Removes the entries that have ended, those among them that a clock which was set back would keep.
DELETE FROM leasehold_locks_clients
WHERE expires_at < {now}
    OR expires_at - {now} > lease_ms + 1000
