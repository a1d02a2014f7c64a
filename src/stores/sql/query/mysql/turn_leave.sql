-- Releases the poller lock of a name.
--
-- :name  :realm
-- Returns 1 if this connection had the poller lock.
SELECT RELEASE_LOCK({turnstile})
