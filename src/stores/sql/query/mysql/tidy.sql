-- Removes the entries that have ended.
DELETE FROM leasehold_locks_clients WHERE expires_at < UTC_TIMESTAMP(6)
