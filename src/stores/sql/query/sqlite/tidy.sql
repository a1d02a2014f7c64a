-- Removes expired rows from the table of clients. A row that ends later than its lease allows counts as expired too: the
-- clock was set back, and the row would otherwise stay.
DELETE FROM leasehold_locks_clients
WHERE expires_at < {now}
    OR expires_at - {now} > lease_ms + 1000
