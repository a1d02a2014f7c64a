-- Frees the session's lock of a name. If the server takes no writes any more, its successor may have given the lock to another
-- before.
--
-- :name
--
-- Returns 1 if the session had it and the server takes writes.
SELECT RELEASE_LOCK({session_lock}) = 1 AND NOT {read_only}
