-- Reads which of several locks are held. The caller replaces IDS by the ids of these locks.
-- Returns the ids of the held locks, in hexadecimal digits; also 'read-only' if the server takes no writes.
SELECT LOWER(HEX(id)) FROM leasehold_locks WHERE id IN (IDS) AND owner <> '' AND expires_at > UTC_TIMESTAMP(6)
UNION ALL
SELECT 'read-only' FROM DUAL WHERE {read_only}
