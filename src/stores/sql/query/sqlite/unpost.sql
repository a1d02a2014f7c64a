-- Removes a client's entry.
--
-- ?1 client
DELETE FROM leasehold_locks_clients WHERE client = ?1
