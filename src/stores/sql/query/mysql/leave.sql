-- Leaves an owner `left` holds; none: frees the lock. Never changes how long it runs.
--
-- :name  :token  :owner  :left
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET
    holds = :left,
    expires_at = IF(:left = 0, UTC_TIMESTAMP(6), expires_at),
    owner = IF(:left = 0, '', owner)
WHERE id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner = :owner AND expires_at > UTC_TIMESTAMP(6)
