-- Tries to take the poller lock of a name for this connection, which must not have it yet. The client that has the poller
-- lock polls the lock often.
--
-- :name  :realm: the table of locks, or '' for session locks
-- Returns the name's id in hexadecimal digits if the connection has the poller lock now (NULL: it has not).
SELECT IF(GET_LOCK({poller_lock}, 0), SHA2(:name, 256), NULL)
