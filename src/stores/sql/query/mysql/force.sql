-- Frees a lock, whoever holds it.
--
-- :name  :token
-- Changes a row if the lock was held.
UPDATE leasehold_locks SET holds = 0, expires_at = UTC_TIMESTAMP(6), owner = ''
WHERE id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner <> '' AND expires_at > UTC_TIMESTAMP(6)
