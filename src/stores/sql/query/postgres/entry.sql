-- Reads a client's entry.
--
-- $1 client
--
-- Returns client, entry, remaining_ms.
SELECT client, entry, ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint
FROM leasehold_locks_clients WHERE client = $1 AND expires_at > clock_timestamp()
