-- Frees a lock, whoever holds it.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token
-- Changes a row if the lock was held.
UPDATE leasehold_locks SET owner = '', holds = 0, expires_at = {now}
WHERE name = ?3 AND token = ?4 AND owner <> '' AND {remaining} > 0
