-- Reads which of several locks are held. IDS stands for their ids.
--
-- Returns the ids of those, in hexadecimal digits.
SELECT LOWER(HEX(id)) FROM leasehold_locks WHERE id IN (IDS) AND owner <> '' AND expires_at > UTC_TIMESTAMP(6)
