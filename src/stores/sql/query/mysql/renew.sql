-- Has a lock that the owner holds run for the lease at least.
--
-- :name  :token  :owner  :lease_us
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    expires_at = GREATEST(expires_at, UTC_TIMESTAMP(6) + INTERVAL :lease_us MICROSECOND)
WHERE id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner = :owner AND expires_at > UTC_TIMESTAMP(6)
