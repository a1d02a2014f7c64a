-- Leaves an owner `left` holds; none: frees the lock. Never changes how long it runs.
--
-- :name  :token  :owner  :left
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    holds = :left,
    expires_at = IF(:left = 0, UTC_TIMESTAMP(6), expires_at),
    owner = IF(:left = 0, '', owner)
WHERE {held_by_owner}
