-- Frees the session's lock of a name.
--
-- :name
-- Returns 1 if the session held the lock and the server takes writes. If it does not, a promoted server may have granted
-- the lock to another session meanwhile.
SELECT RELEASE_LOCK({session_lock}) = 1 AND NOT {read_only}
