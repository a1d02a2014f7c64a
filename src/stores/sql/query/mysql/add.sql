-- Adds the row of a lock, as a free lock. Does nothing if the lock has a row.
--
-- :name
-- Changes a row (the new one), unless the lock had one.
INSERT IGNORE INTO leasehold_locks (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since)
VALUES (UNHEX(SHA2(:name, 256)), :name, FALSE, '', 0, UTC_TIMESTAMP(6), 0, '', 0, '', UTC_TIMESTAMP(6))
