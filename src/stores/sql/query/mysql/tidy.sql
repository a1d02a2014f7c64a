-- Removes the directory's entries that have expired.
DELETE FROM leasehold_locks_clients WHERE expires_at < UTC_TIMESTAMP(6)
