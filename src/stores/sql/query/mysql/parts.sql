-- Parts of statements: a statement names a part in braces, and the client fills the part in. A part alone Returns nothing.
--
-- :name  :token: whether it is a lock of get_token_lock  :owner  :lease_ms  :fenced
-- :realm: the table of locks, or '' for session locks

-- {read_only}
-- Whether the server takes no writes. True also for users who may write nevertheless (SUPER, READ ONLY ADMIN), since only
-- the primary may grant locks.
(CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only)

-- {session_lock}
-- The GET_LOCK name of a session lock: a part of a hash, since the server allows 64 characters at most and ignores case.
CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48))

-- {poller_lock}
-- The GET_LOCK name of a lock's poller lock. Contains the database, because GET_LOCK locks for the whole server.
CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT(IF(:realm = '', '', CONCAT(DATABASE(), '/', :realm)), '/', :name), 256), 40))

-- {remaining}
CAST(CEIL(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000) AS SIGNED)

-- {lease_end}
UTC_TIMESTAMP(6) + INTERVAL :lease_ms * 1000 MICROSECOND

-- {fence}
-- At least the microseconds since 1970, so that fencing tokens grow even if the row was lost.
LAST_INSERT_ID(IF(:fenced, GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), fence))

-- {held_by_owner}
id = UNHEX(SHA2(:name, 256)) AND token = :token AND owner = :owner AND expires_at > UTC_TIMESTAMP(6)
