-- Takes the lock of a name for the session. Such a lock belongs to the whole server, not to one database.
--
-- :name
-- Returns 1 if it was taken, 0 if another session holds it, -1 if the server takes no writes, NULL after an error.
SELECT IF({read_only}, -1, GET_LOCK({session_lock}, 0))
