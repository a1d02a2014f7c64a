-- Reads for how long a session has been busy with one request.
--
-- :session
-- Returns whole seconds, if the session is busy.
SELECT time FROM information_schema.processlist WHERE id = :session AND command <> 'Sleep'
