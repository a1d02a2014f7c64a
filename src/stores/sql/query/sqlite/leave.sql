-- Leaves an owner `left` holds; none: frees the lock. Never changes how long it runs.
--
-- ?1 name  ?2 token  ?3 owner  ?4 left  ?5 boot  ?6 up_ms
--
-- Changes a row if the owner holds it. Whether its lease is over: see `look.sql`.
UPDATE leasehold_locks SET
    holds = ?4,
    owner = CASE WHEN ?4 = 0 THEN '' ELSE owner END,
    expires_at = CASE WHEN ?4 = 0
        THEN CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) ELSE expires_at END
WHERE name = ?1 AND token = ?2 AND owner = ?3
    AND CASE WHEN boot = ?5 THEN ends_up - ?6
        WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
        ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END > 0
