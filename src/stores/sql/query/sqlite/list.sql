-- Reads a page of the locks, free or held, and what is told of them.
--
-- ?1 boot  ?2 up_ms  ?3 after
--
-- Returns token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name of each.
--
-- A name is its own id.
SELECT token, owner, holds, runs - (runs > 1), fence, host, pid, thread, max(0, held), name, name FROM (
    SELECT token, owner, holds, {runs} AS runs, fence, host, pid, thread, {now} - since AS held, name
    FROM leasehold_locks WHERE name > ?3 ORDER BY name LIMIT 500
)
