-- Reads a lock.
--
-- ?1 name  ?2 boot  ?3 up_ms
--
-- Returns token, owner, holds, remaining_ms, if there is a row.
--
-- Until the machine is started again its lease goes by the time since the start, whatever is done to the
-- clock. After that by the clock, unless that was set back: then its end is further away than the lease. Of a
-- machine whose start is not known (NULL, or '') it goes by the clock alone.
--
-- A lease is kept a millisecond longer than asked for, since both clocks' milliseconds are cut; that one is
-- not shown.
SELECT token, owner, holds, runs - (runs > 1) FROM (
    SELECT token, owner, holds,
        CASE WHEN boot = ?2 THEN ends_up - ?3
            WHEN boot <> '' AND expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) > lease_ms + 1000 THEN 0
            ELSE expires_at - CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) END AS runs
    FROM leasehold_locks WHERE name = ?1
)
