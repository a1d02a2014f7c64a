-- Takes a lock that is free or that the owner already holds, with count 1.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 lease_ms  ?7 fenced  ?8 host  ?9 pid  ?10 thread
-- Returns the fence, if the lock was taken.
INSERT INTO leasehold_locks AS held
    (name, token, owner, holds, expires_at, boot, ends_up, lease_ms, fence, host, pid, thread, since)
SELECT ?3, ?4, ?5, 1, wall + 1 + rest, coalesce(?1, ''), ?2 + 1 + rest, rest,
    CASE WHEN ?7 THEN wall * 1000 ELSE 0 END, ?8, ?9, ?10, wall
FROM (
    SELECT {now} AS wall, max(?6, coalesce((
        -- A lock that the owner already holds must not end sooner. `- 1`, because `wall + 1 + rest` adds it again.
        SELECT {remaining} - 1 FROM leasehold_locks WHERE name = ?3 AND owner = ?5
    ), 0)) AS rest
)
WHERE true
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token,
    owner = excluded.owner,
    holds = 1,
    expires_at = excluded.expires_at, boot = excluded.boot, ends_up = excluded.ends_up, lease_ms = excluded.lease_ms,
    fence = CASE WHEN ?7 THEN max(held.fence + 1, excluded.fence) ELSE held.fence END,
    host = excluded.host, pid = excluded.pid, thread = excluded.thread, since = excluded.since
WHERE held.owner = '' OR (held.owner = excluded.owner AND held.token = excluded.token)
    OR {remaining} <= 0
RETURNING fence
