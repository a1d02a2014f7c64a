-- Reads which session has the lock of a name.
--
-- :name
--
-- Returns its number (NULL: none has).
SELECT IS_USED_LOCK({session_lock})
