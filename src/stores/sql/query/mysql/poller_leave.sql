-- Releases the poller lock of a name.
--
-- :name  :realm: as in poller_enter.sql
-- Returns 1 if this connection had the poller lock.
SELECT RELEASE_LOCK({poller_lock})
