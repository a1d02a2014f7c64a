-- Removes a client's entry from the directory.
--
-- ?1 client
DELETE FROM leasehold_locks_clients WHERE client = ?1
