-- Reads a lock.
--
-- :name
--
-- Returns token, owner, holds, remaining_ms, if there is a row.
SELECT token, owner, holds,
    CAST(CEIL(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000) AS SIGNED)
FROM leasehold_locks WHERE id = UNHEX(SHA2(:name, 256))
