-- Reads which locks ended long ago, at most a thousand. Locks no row.
--
-- :age_ms
-- Returns the id of each.
SELECT id FROM leasehold_locks WHERE expires_at < UTC_TIMESTAMP(6) - INTERVAL :age_ms * 1000 MICROSECOND LIMIT 1000
