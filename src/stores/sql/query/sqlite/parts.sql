-- Parts of statements: a statement names a part in braces, and the client fills the part in. A part alone Returns nothing.
--
-- ?1 boot: id of the machine's start  ?2 up_ms: milliseconds since then  ?3 name
-- ?4 token: whether it is a lock of get_token_lock  ?5 owner  ?6 lease_ms

-- {held_by_owner}
name = ?3 AND token = ?4 AND owner = ?5 AND {remaining} > 0

-- {rest_of_lease}
-- Used with {if_held_by_owner}, which defines `wall` (the time now) and `rest` (the remaining time, or the new lease if that
-- is longer). The lease ends 1 ms later, for the reason given in {remaining}.
expires_at = wall + 1 + rest, boot = coalesce(?1, ''), ends_up = ?2 + 1 + rest, lease_ms = rest

-- {if_held_by_owner}
FROM (
    SELECT wall, left_ms, max(left_ms - 1, ?6) AS rest FROM (
        SELECT {now} AS wall, {remaining} AS left_ms FROM leasehold_locks WHERE name = ?3
    )
)
WHERE name = ?3 AND token = ?4 AND owner = ?5 AND left_ms > 0

-- {remaining}
-- The remaining milliseconds of a lock. Until the machine restarts, a lease is measured by the time since the
-- machine's start, so changes of the clock do not matter. After a restart the clock decides. If the clock was set
-- back, the end is further away than the lease, and the lock counts as ended. If the machine's start is unknown
-- (NULL, or ''), the clock alone decides.
--
-- Each lease ends 1 ms later than requested, since both clocks cut fractions of a millisecond. Results to the user leave
-- this millisecond out. A result is also cut to the lease: the client reads the time since the start before the statement
-- runs, so a renewal by another process in between would make the rest longer than the lease.
CASE WHEN boot = ?1 THEN ends_up - ?2
    WHEN boot <> '' AND expires_at - {now} > lease_ms + 1000 THEN 0
    ELSE expires_at - {now} END

-- {now}
CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
