-- Parts of statements: a statement names a part in braces, and the client fills the part in. A part alone Returns nothing.
--
-- $1 name  $2 token: whether it is a lock of get_token_lock  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 keeper: the channel of the client if it caches the lock  $10 client

-- {remaining}
ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint

-- {seen}
-- The lock's row as it was before the statement; {before} has its columns for the result.
seen AS MATERIALIZED (
    SELECT token, owner, holds, expires_at, keeper FROM leasehold_locks WHERE id = sha256($1)
)

-- {before}
seen.token, seen.owner, seen.holds::bigint,
    ceil(extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000)::bigint

-- {reserved}
-- Until when the lock is reserved for another client, which was notified. Ignores a reservation of 700 ms or more, which only
-- a server clock that was set back can cause.
reserved AS MATERIALIZED (
    SELECT max(reserved_until) AS until FROM leasehold_locks_wait_queue
    WHERE id = sha256($1) AND is_next AND client <> $10::text
        AND reserved_until > clock_timestamp() AND reserved_until < clock_timestamp() + interval '700 milliseconds'
)

-- {reserved_ms}
ceil(extract(epoch FROM reserved.until - clock_timestamp()) * 1000)::bigint

-- {insert}
INSERT INTO leasehold_locks AS held (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since, keeper)
    SELECT sha256($1), $1, $2, $3, 1, {lease_end},
        CASE WHEN $5 THEN {micros} ELSE 0 END,
        $6, $7, $8, clock_timestamp(), $9
    WHERE NOT EXISTS (
        SELECT FROM seen WHERE owner <> '' AND expires_at > clock_timestamp() AND (owner <> $3 OR token <> $2)
    )

-- {unless_reserved}
AND (
        (SELECT until IS NULL FROM reserved)
        OR EXISTS (SELECT FROM seen WHERE owner = $3 AND token = $2 AND expires_at > clock_timestamp())
    )

-- {or_update}
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

-- {held_by_owner}
id = sha256($1) AND held.token = $2 AND held.owner = $3 AND held.expires_at > clock_timestamp()

-- {lease_end}
clock_timestamp() + $4::bigint * interval '1 millisecond'

-- {micros}
-- A new fencing token is at least this, so that tokens grow even if the row was lost.
(extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- {advisory_sessions}
pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid, (SELECT {advisory_key} AS key) AS wanted
WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295

-- {advisory_key}
('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint

-- {is_read_only}
current_setting('transaction_read_only')::boolean
