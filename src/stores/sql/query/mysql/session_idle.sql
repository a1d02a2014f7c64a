-- Reads for how long a session has been idle, or busy with one request, if it holds the lock of a name.
--
-- :session  :name
-- Returns whole seconds, if the session holds the lock.
SELECT time FROM information_schema.processlist WHERE id = :session AND id = IS_USED_LOCK({session_lock})
