-- Removes a client's entry.
--
-- :client
DELETE FROM leasehold_locks_clients WHERE client = :client
