-- Reads a lock.
--
-- :name
--
-- Returns token, owner, holds, remaining_ms, and whether the server takes no writes, if there is a row.
SELECT token, owner, holds,
    CAST(CEIL(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000) AS SIGNED),
    CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only
FROM leasehold_locks WHERE id = UNHEX(SHA2(:name, 256))
