-- Has a lock that the owner holds end by itself after the rest that is given, sooner or later than it would.
--
-- $1 name  $2 token  $3 owner  $4 rest_ms
--
-- Returns a row if the owner holds it.
UPDATE leasehold_locks SET expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
WHERE id = sha256($1) AND token = $2 AND owner = $3 AND expires_at > clock_timestamp()
RETURNING holds
