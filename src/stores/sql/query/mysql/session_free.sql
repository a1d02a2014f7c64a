-- Frees the session's lock of a name. If the server takes no writes any more, its successor may have granted the lock to
-- another session before.
--
-- :name
-- Returns 1 if the session held the lock and the server takes writes.
SELECT RELEASE_LOCK({session_lock}) = 1 AND NOT {read_only}
