-- Sets the count of a lock that the owner holds; it then runs for the lease at least.
--
-- ?1 name  ?2 token  ?3 owner  ?4 lease_ms  ?5 whether with a fence  ?6 count
--
-- Returns the fence, if the owner holds it.
UPDATE leasehold_locks SET
    holds = ?6,
    expires_at = max(expires_at, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) + 1 + ?4),
    fence = CASE WHEN ?5
        THEN max(fence + 1, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) * 1000) ELSE fence END
WHERE name = ?1 AND token = ?2 AND owner = ?3 AND expires_at > CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
RETURNING fence
