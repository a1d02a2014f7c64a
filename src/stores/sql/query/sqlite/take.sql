-- Takes a lock that is free or the owner's already, with count one.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms  ?5 fenced  ?6 host  ?7 pid  ?8 thread  ?9 boot  ?10 up_ms
--
-- Returns the fence, if it was taken. Whether a lease is over: see `look.sql`.
INSERT INTO leasehold_locks AS held
    (name, token, owner, holds, expires_at, boot, ends_up, lease_ms, fence, host, pid, thread, since)
SELECT ?1, ?2, ?3, 1, wall + 1 + rest, coalesce(?9, ''), ?10 + 1 + rest, rest,
    CASE WHEN ?5 THEN wall * 1000 ELSE 0 END, ?6, ?7, ?8, wall
FROM (
    SELECT CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) AS wall, max(?4, coalesce((
        -- One that the owner has is not to end sooner.
        SELECT CASE WHEN boot = ?9 THEN ends_up - ?10
            WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
            ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END - 1
        FROM leasehold_locks WHERE name = ?1 AND owner = ?3
    ), 0)) AS rest
)
WHERE true
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token,
    owner = excluded.owner,
    holds = 1,
    expires_at = excluded.expires_at, boot = excluded.boot, ends_up = excluded.ends_up, lease_ms = excluded.lease_ms,
    fence = CASE WHEN ?5 THEN max(held.fence + 1, excluded.fence) ELSE held.fence END,
    host = excluded.host, pid = excluded.pid, thread = excluded.thread, since = excluded.since
WHERE held.owner = '' OR (held.owner = excluded.owner AND held.token = excluded.token)
    OR CASE WHEN held.boot = ?9 THEN held.ends_up - ?10
        WHEN held.boot <> '' AND held.expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > held.lease_ms + 1000 THEN 0
        ELSE held.expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END <= 0
RETURNING fence
