-- Takes a lock that is free or the owner's already, as take.sql does, unless it is kept for another client of
-- its line.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 client  $10 keeper: its channel, if it keeps it until others ask for it (NULL: it does not)
--
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms as they were before, the channel on
-- which its holder can be asked for it (NULL: on none), and for how many ms the lock is kept for another (NULL: it is not).
WITH seen AS MATERIALIZED (
    SELECT token, owner, holds, expires_at, keeper FROM leasehold_locks WHERE id = sha256($1)
), kept AS MATERIALIZED (
    -- Not for long, if the clock was set back.
    SELECT max(kept_until) AS until FROM leasehold_locks_line
    WHERE id = sha256($1) AND is_told AND client <> $9::text
        AND kept_until > clock_timestamp() AND kept_until < clock_timestamp() + interval '50 milliseconds'
), took AS (
    INSERT INTO leasehold_locks AS held (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since, keeper)
    SELECT sha256($1), $1, $2, $3, 1,
        clock_timestamp() + $4::bigint * interval '1 millisecond',
        CASE WHEN $5 THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint ELSE 0 END,
        $6, $7, $8, clock_timestamp(), $10
    WHERE NOT EXISTS (
        SELECT FROM seen WHERE owner <> '' AND expires_at > clock_timestamp() AND (owner <> $3 OR token <> $2)
    ) AND (
        (SELECT until IS NULL FROM kept)
        OR EXISTS (SELECT FROM seen WHERE owner = $3 AND token = $2 AND expires_at > clock_timestamp())
    )
    ON CONFLICT (id) DO UPDATE SET
        token = excluded.token,
        owner = excluded.owner,
        holds = 1,
        expires_at = CASE WHEN held.owner = excluded.owner
            THEN greatest(held.expires_at, excluded.expires_at) ELSE excluded.expires_at END,
        fence = CASE WHEN $5 THEN greatest(held.fence + 1, excluded.fence) ELSE held.fence END,
        host = excluded.host, pid = excluded.pid, thread = excluded.thread, since = excluded.since,
        keeper = excluded.keeper
    WHERE held.owner = '' OR held.expires_at <= clock_timestamp()
        OR (held.owner = excluded.owner AND held.token = excluded.token)
    RETURNING held.fence
)
SELECT took.fence, seen.token, seen.owner, seen.holds::bigint,
    ceil(extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000)::bigint,
    seen.keeper,
    ceil(extract(epoch FROM kept.until - clock_timestamp()) * 1000)::bigint
FROM kept LEFT JOIN took ON true LEFT JOIN seen ON true
