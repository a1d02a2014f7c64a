-- Reads which session holds the lock of a name.
--
-- :name
-- Returns the session's number (NULL: no session holds the lock).
SELECT IS_USED_LOCK({session_lock})
