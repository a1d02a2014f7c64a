-- Removes a client's entry, and those that have ended.
--
-- :client
DELETE FROM leasehold_locks_clients WHERE client = :client OR expires_at < UTC_TIMESTAMP(6)
