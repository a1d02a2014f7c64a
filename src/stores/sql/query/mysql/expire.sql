-- Sets the end of a lock that the owner holds to rest_ms from now, even if that is sooner than before.
--
-- :name  :token  :owner  :rest_ms
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET expires_at = UTC_TIMESTAMP(6) + INTERVAL :rest_ms * 1000 MICROSECOND
WHERE {held_by_owner}
