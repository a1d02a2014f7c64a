-- Takes a lock that is free or that the owner already holds, with count 1. MySQL assigns the columns in order, and later
-- expressions see the new values. Therefore owner, which the other expressions compare, comes last.
--
-- :name  :token  :owner  :lease_ms  :fenced  :host  :pid  :thread
-- Changes a row if the lock was taken; the fence is then the statement's insert id.
UPDATE leasehold_locks SET
    expires_at = IF(owner = :owner, GREATEST(expires_at, {lease_end}), {lease_end}),
    fence = {fence},
    holds = 1, token = :token, host = :host, pid = :pid, thread = :thread, since = UTC_TIMESTAMP(6),
    owner = :owner
WHERE id = UNHEX(SHA2(:name, 256))
    AND (owner = '' OR expires_at <= UTC_TIMESTAMP(6) OR (owner = :owner AND token = :token))
