-- Takes the lock of a name for the session, of the whole server.
--
-- :name
--
-- Returns 1 if it was taken, 0 if another session has it, -1 if the server takes no writes, NULL if the server cannot tell.
SELECT IF({read_only}, -1, GET_LOCK({session_lock}, 0))
