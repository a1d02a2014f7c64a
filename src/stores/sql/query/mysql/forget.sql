-- Removes the row of a lock that has been free for long.
--
-- :id  :age_ms
--
-- Changes a row if it still was.
DELETE FROM leasehold_locks WHERE id = :id AND expires_at < UTC_TIMESTAMP(6) - INTERVAL :age_ms * 1000 MICROSECOND
