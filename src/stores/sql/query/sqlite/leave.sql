-- Leaves an owner so many holds; none: frees the lock. Never changes how long it runs.
--
-- ?1 name  ?2 token  ?3 owner  ?4 left
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    holds = ?4,
    owner = CASE WHEN ?4 = 0 THEN '' ELSE owner END,
    expires_at = CASE WHEN ?4 = 0
        THEN CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) ELSE expires_at END
WHERE name = ?1 AND token = ?2 AND owner = ?3 AND expires_at > CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
