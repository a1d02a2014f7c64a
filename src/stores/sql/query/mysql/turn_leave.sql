-- Gives the turnstile of a name back.
--
-- :name  :realm
--
-- Returns 1 if it was this connection's.
SELECT RELEASE_LOCK({turnstile})
