-- Has a lock that the owner holds end by itself after the rest that is given, sooner or later than it would.
--
-- :name  :token  :owner  :rest_ms
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET expires_at = UTC_TIMESTAMP(6) + INTERVAL :rest_ms * 1000 MICROSECOND
WHERE {held_by_owner}
