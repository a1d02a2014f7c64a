-- Sets an owner's hold count to `left`. If that is 0, frees the lock. The expiry of a lock that stays held is unchanged.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 left
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET
    holds = ?6,
    owner = CASE WHEN ?6 = 0 THEN '' ELSE owner END,
    expires_at = CASE WHEN ?6 = 0 THEN {now} ELSE expires_at END
WHERE {held_by_owner}
