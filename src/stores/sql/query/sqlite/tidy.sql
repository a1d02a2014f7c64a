-- Removes expired rows from the table of clients. Also removes a row that ends later than its lease allows: the clock was
-- set back, and the row would stay for too long.
DELETE FROM leasehold_locks_clients
WHERE expires_at < {now}
    OR expires_at - {now} > lease_ms + 1000
