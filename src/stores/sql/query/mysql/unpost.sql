-- Removes a client's row from the table of clients.
--
-- :client
DELETE FROM leasehold_locks_clients WHERE client = :client
