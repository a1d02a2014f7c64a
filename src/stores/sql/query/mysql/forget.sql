-- Removes the row of a lock that ended long ago.
--
-- :id  :age_ms
-- Changes a row if the lock has not been taken since long_free.sql found it.
DELETE FROM leasehold_locks WHERE id = :id AND expires_at < UTC_TIMESTAMP(6) - INTERVAL :age_ms * 1000 MICROSECOND
