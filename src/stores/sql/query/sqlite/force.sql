-- Frees a lock, whoever holds it.
--
-- ?1 name  ?2 token
--
-- Changes a row if it was held.
UPDATE leasehold_locks SET
    owner = '', holds = 0, expires_at = CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
WHERE name = ?1 AND token = ?2 AND owner <> ''
    AND expires_at > CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
