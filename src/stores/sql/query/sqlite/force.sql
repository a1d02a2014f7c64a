-- Frees a lock, whoever holds it.
--
-- ?1 name  ?2 token  ?3 boot  ?4 up_ms
--
-- Changes a row if it was held. Whether its lease is over: see `look.sql`.
UPDATE leasehold_locks SET
    owner = '', holds = 0, expires_at = CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
WHERE name = ?1 AND token = ?2 AND owner <> ''
    AND CASE WHEN boot = ?3 THEN ends_up - ?4
        WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
        ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END > 0
