-- Sets the count of a lock that the owner holds; it then runs for the lease at least.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms  ?5 fenced  ?6 count  ?7 boot  ?8 up_ms
--
-- Returns the fence, if the owner holds it. Whether its lease is over: see `look.sql`.
UPDATE leasehold_locks SET
    holds = ?6,
    expires_at = wall + 1 + rest, boot = coalesce(?7, ''), ends_up = ?8 + 1 + rest, lease_ms = rest,
    fence = CASE WHEN ?5 THEN max(fence + 1, wall * 1000) ELSE fence END
FROM (
    SELECT wall, runs, max(runs - 1, ?4) AS rest FROM (
        SELECT CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS wall,
            CASE WHEN boot = ?7 THEN ends_up - ?8
                WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
                ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END AS runs
        FROM leasehold_locks WHERE name = ?1
    )
)
WHERE name = ?1 AND token = ?2 AND owner = ?3 AND runs > 0
RETURNING fence
