CREATE TABLE IF NOT EXISTS leasehold_locks ( -- leasehold format 1 (clients read this in the stored statement)
    name       BLOB PRIMARY KEY,
    token      INTEGER NOT NULL,   -- whether taken through get_token_lock
    owner      TEXT NOT NULL,      -- client id:owner number; '' if free
    holds      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,   -- ms since 1970, by the machine's clock; the lock is free from then on
    boot       TEXT NOT NULL,      -- id of the machine's start before the grant; '' if unknown
    ends_up    INTEGER NOT NULL,   -- the end in ms since that start; replaces expires_at until the machine restarts
    lease_ms   INTEGER NOT NULL,   -- if the end is further away than this, the clock was set back
    fence      INTEGER NOT NULL,   -- the last fencing token issued; never decreases
    host       TEXT NOT NULL,      -- where the holder runs, for people to read
    pid        INTEGER NOT NULL,
    thread     TEXT NOT NULL,
    since      INTEGER NOT NULL    -- ms since 1970
) STRICT, WITHOUT ROWID
