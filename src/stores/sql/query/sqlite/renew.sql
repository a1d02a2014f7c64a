-- Has a lock that the owner holds run for the lease at least.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms  ?5 boot  ?6 up_ms
--
-- Changes a row if the owner holds it. Whether its lease is over: see `look.sql`.
UPDATE leasehold_locks SET
    expires_at = wall + 1 + rest, boot = coalesce(?5, ''), ends_up = ?6 + 1 + rest, lease_ms = rest
FROM (
    SELECT wall, runs, max(runs - 1, ?4) AS rest FROM (
        SELECT CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS wall,
            CASE WHEN boot = ?5 THEN ends_up - ?6
                WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
                ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END AS runs
        FROM leasehold_locks WHERE name = ?1
    )
)
WHERE name = ?1 AND token = ?2 AND owner = ?3 AND runs > 0
