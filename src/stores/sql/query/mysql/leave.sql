-- Sets an owner's hold count to `left`. If that is 0, frees the lock. The expiry of a lock that stays held is unchanged.
--
-- :name  :token  :owner  :left
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET
    holds = :left,
    expires_at = IF(:left = 0, UTC_TIMESTAMP(6), expires_at),
    owner = IF(:left = 0, '', owner)
WHERE {held_by_owner}
