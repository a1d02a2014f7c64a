-- Parts of statements: each stands in place of its name in braces. Their parameters are in the heads of the statements.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 lease_ms
--
-- Returns nothing by itself.

-- {held_by_owner}
name = ?3 AND token = ?4 AND owner = ?5 AND {runs} > 0

-- {rest_of_lease}
expires_at = wall + 1 + rest, boot = coalesce(?1, ''), ends_up = ?2 + 1 + rest, lease_ms = rest

-- {if_held_by_owner}
FROM (
    SELECT wall, runs, max(runs - 1, ?6) AS rest FROM (
        SELECT {now} AS wall, {runs} AS runs FROM leasehold_locks WHERE name = ?3
    )
)
WHERE name = ?3 AND token = ?4 AND owner = ?5 AND runs > 0

-- {runs}
-- How long a lock still runs. Until the machine is started again its lease goes by the time since the start, whatever is done to
-- the clock. After that by the clock, unless that was set back: then its end is further away than the lease. Of a machine whose
-- start is not known (NULL, or '') it goes by the clock alone.
--
-- A lease is kept a millisecond longer than asked for, since both clocks' milliseconds are cut; that one is not shown.
CASE WHEN boot = ?1 THEN ends_up - ?2
    WHEN boot <> '' AND expires_at - {now} > lease_ms + 1000 THEN 0
    ELSE expires_at - {now} END

-- {now}
CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)
