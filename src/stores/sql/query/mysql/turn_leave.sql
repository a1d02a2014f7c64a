-- Gives the turnstile of a name back.
--
-- :name
--
-- Returns 1 if it was this connection's.
SELECT RELEASE_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT(DATABASE(), '/leasehold_locks/', :name), 256), 40)))
