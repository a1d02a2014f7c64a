-- Reads which of several GET_LOCK locks are held. The caller replaces IDS by the ids of these locks.
-- Returns the ids of the held locks; also 'read-only' if the server takes no writes.
SELECT id FROM (IDS) AS ids WHERE IS_FREE_LOCK(CONCAT('leasehold:', LEFT(id, 48))) = 0
UNION ALL
SELECT 'read-only' FROM DUAL WHERE {read_only}
