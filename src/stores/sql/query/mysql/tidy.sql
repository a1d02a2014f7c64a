-- Removes expired rows from the table of clients.
DELETE FROM leasehold_locks_clients WHERE expires_at < UTC_TIMESTAMP(6)
