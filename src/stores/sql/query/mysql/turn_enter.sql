-- Tries the turnstile of a name, for this connection, which must not have it.
--
-- :name
--
-- Returns 1 if it is this connection's now, and the name's id in hexadecimal digits.
SELECT GET_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT(DATABASE(), '/leasehold_locks/', :name), 256), 40)), 0),
    SHA2(:name, 256)
