-- Reads which of several locks are held. IDS stands for their ids.
--
-- Returns the ids of those, in hexadecimal digits; also 'read-only' if the server takes no writes.
SELECT LOWER(HEX(id)) FROM leasehold_locks WHERE id IN (IDS) AND owner <> '' AND expires_at > UTC_TIMESTAMP(6)
UNION ALL
SELECT 'read-only' FROM DUAL WHERE {read_only}
