-- Sets the count of a lock that the owner holds; it then runs for the lease at least.
--
-- :name  :token  :owner  :lease_ms  :fenced  :count
--
-- Changes a row if the owner holds it; the fence is then the statement's insert id.
UPDATE leasehold_locks SET
    expires_at = GREATEST(expires_at, UTC_TIMESTAMP(6) + INTERVAL :lease_ms * 1000 MICROSECOND),
    fence = LAST_INSERT_ID(IF(:fenced,
        GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), fence)),
    holds = :count
WHERE id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner = :owner AND expires_at > UTC_TIMESTAMP(6)
