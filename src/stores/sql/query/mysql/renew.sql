-- Has a lock that the owner holds run for the lease at least.
--
-- :name  :token  :owner  :lease_ms
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    expires_at = GREATEST(expires_at, UTC_TIMESTAMP(6) + INTERVAL :lease_ms * 1000 MICROSECOND)
WHERE id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner = :owner AND expires_at > UTC_TIMESTAMP(6)
