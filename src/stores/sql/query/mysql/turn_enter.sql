-- Tries the turnstile of a name, for this connection, which must not have it.
--
-- :name  :realm: the table of the locks, or '' for session locks
--
-- Returns the name's id in hexadecimal digits, if the turnstile is this connection's now (NULL: it is not).
SELECT IF(GET_LOCK({turnstile}, 0), SHA2(:name, 256), NULL)
