-- Reads a lock.
--
-- :name
-- Returns token, owner, holds, remaining_ms, and whether the server takes no writes, if there is a row.
SELECT token, owner, holds, {remaining}, {read_only}
FROM leasehold_locks WHERE id = UNHEX(SHA2(:name, 256))
