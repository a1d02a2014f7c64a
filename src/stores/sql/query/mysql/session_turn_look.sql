-- Reads which of several session locks are held. IDS stands for their ids.
--
-- Returns the ids of those; also 'read-only' if the server takes no writes.
SELECT id FROM (IDS) AS ids WHERE IS_FREE_LOCK(CONCAT('leasehold:', LEFT(id, 48))) = 0
UNION ALL
SELECT 'read-only' FROM DUAL WHERE {read_only}
