-- Has a lock that the owner holds end by itself after the rest that is given, sooner or later than it would.
--
-- ?1 name  ?2 token  ?3 owner  ?4 rest_ms  ?5 boot  ?6 up_ms
--
-- Changes a row if the owner holds it. Whether its lease is over: see `look.sql`.
UPDATE leasehold_locks SET
    expires_at = CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) + 1 + ?4, boot = coalesce(?5, ''), ends_up = ?6 + 1 + ?4, lease_ms = ?4
WHERE name = ?1 AND token = ?2 AND owner = ?3
    AND CASE WHEN boot = ?5 THEN ends_up - ?6
        WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
        ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END > 0
