-- Frees the session's lock of a name.
--
-- :name
-- Returns 1 if the session held the lock and the server takes writes. If the server takes no writes, another server may
-- have become the primary, and may have granted the lock to another session.
SELECT RELEASE_LOCK({session_lock}) = 1 AND NOT {read_only}
