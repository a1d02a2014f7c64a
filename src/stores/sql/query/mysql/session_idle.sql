-- Reads how long a session has been idle, if it has the lock of a name.
--
-- :session  :name
--
-- Returns whole seconds, if it has.
SELECT time FROM information_schema.processlist WHERE id = :session AND id = IS_USED_LOCK({session_lock})
