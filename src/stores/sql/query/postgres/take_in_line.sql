-- Takes a lock that is free or the owner's already, as take_kept.sql does. Else joins the line of the clients
-- that wait for it, or says there that it still waits. A client that has stood there of late only reads.
--
-- A client that writes to the line writes to the lock's row too, without a change. So a release that began
-- before, and does not see what is written to the line, finds another version of the row than it saw; or this
-- statement waits until the release is committed, and says that the lock is not held any more. Nobody waits
-- for the disk then. One that was told and finds the lock taken stands in front again, where it was.
--
-- $1 name  $2 token  $3 owner  $4 lease_ms  $5 fenced  $6 host  $7 pid  $8 thread
-- $9 client  $10 channel: its own  $11 keeper: the same, if it keeps it until others ask for it (NULL: it does not)
--
-- Returns one row: the fence (NULL: not taken), token, owner, holds, remaining_ms as they were before, the channel on which
-- its holder can be asked for it (NULL: on none), for how many ms the lock is kept for another (NULL: it is not), whether this
-- wrote to the line of a lock that is free by now, how it wrote, and, if it took the lock out of the line, how many clients stood
-- there.
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
        $6, $7, $8, clock_timestamp(), $11
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
), gone AS (
    DELETE FROM leasehold_locks_line WHERE id = sha256($1) AND client = $9 AND EXISTS (SELECT FROM took)
    RETURNING true
), joined AS (
    INSERT INTO leasehold_locks_line AS place (id, client, channel, since, seen, is_told)
    SELECT sha256($1), $9, $10, statement_timestamp(), statement_timestamp(), false
    WHERE NOT EXISTS (SELECT FROM took) AND NOT EXISTS (
        SELECT FROM seen WHERE token <> $2 AND owner <> '' AND expires_at > clock_timestamp()
    ) AND NOT EXISTS (
        SELECT FROM leasehold_locks_line WHERE id = sha256($1) AND client = $9 AND NOT is_told
            AND seen > statement_timestamp() - interval '2 seconds'
    )
    ON CONFLICT (id, client) DO UPDATE SET
        channel = excluded.channel, seen = excluded.seen, is_told = false, kept_until = NULL
    RETURNING true
), touched AS (
    UPDATE leasehold_locks AS held SET holds = held.holds
    WHERE id = sha256($1) AND held.owner <> '' AND held.expires_at > clock_timestamp() AND EXISTS (SELECT FROM joined)
    RETURNING true
)
SELECT took.fence, seen.token, seen.owner, seen.holds::bigint,
    ceil(extract(epoch FROM seen.expires_at - clock_timestamp()) * 1000)::bigint,
    seen.keeper,
    ceil(extract(epoch FROM kept.until - clock_timestamp()) * 1000)::bigint,
    EXISTS (SELECT FROM joined) AND NOT EXISTS (SELECT FROM touched),
    CASE WHEN EXISTS (SELECT FROM joined) THEN set_config('synchronous_commit', 'off', true) END,
    -- As they stood before.
    CASE WHEN EXISTS (SELECT FROM gone) THEN (
        SELECT count(*) FROM leasehold_locks_line
        WHERE id = sha256($1) AND (client = $9 OR seen > clock_timestamp() - interval '5 seconds')
    ) END
FROM kept LEFT JOIN took ON true LEFT JOIN seen ON true
