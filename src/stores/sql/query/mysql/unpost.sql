-- Removes a client's entry from the directory.
--
-- :client
DELETE FROM leasehold_locks_clients WHERE client = :client
