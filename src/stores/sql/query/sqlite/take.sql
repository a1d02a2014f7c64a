-- Takes a lock that is free or the owner's already, with count one.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms  ?5 whether with a fence  ?6 host  ?7 pid  ?8 thread
--
-- Returns the fence, if it was taken.
INSERT INTO leasehold_locks AS held (name, token, owner, holds, expires_at, fence, host, pid, thread, since)
VALUES (?1, ?2, ?3, 1,
    CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) + 1 + ?4,
    CASE WHEN ?5 THEN CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) * 1000 ELSE 0 END,
    ?6, ?7, ?8, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER))
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token,
    owner = excluded.owner,
    holds = 1,
    expires_at = CASE WHEN held.owner = excluded.owner
        THEN max(held.expires_at, excluded.expires_at) ELSE excluded.expires_at END,
    fence = CASE WHEN ?5 THEN max(held.fence + 1, excluded.fence) ELSE held.fence END,
    host = excluded.host, pid = excluded.pid, thread = excluded.thread, since = excluded.since
WHERE held.owner = '' OR held.expires_at <= CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
    OR (held.owner = excluded.owner AND held.token = excluded.token)
RETURNING fence
