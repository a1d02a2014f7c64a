CREATE TABLE IF NOT EXISTS leasehold_locks (
    name       BLOB PRIMARY KEY,   -- leasehold format 1
    token      INTEGER NOT NULL,   -- taken by get_token_lock
    owner      TEXT NOT NULL,      -- client:number; '' if free
    holds      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,   -- ms since 1970, by the machine's clock; free from then on
    boot       TEXT NOT NULL,      -- the start of the machine at which it was taken; '' if not known
    ends_up    INTEGER NOT NULL,   -- ms since that start; decides instead of expires_at until the next
    lease_ms   INTEGER NOT NULL,   -- an end further away than that proves that the clock was set back
    fence      INTEGER NOT NULL,   -- the last one given; never goes back
    host       TEXT NOT NULL,      -- who took it, for people to see
    pid        INTEGER NOT NULL,
    thread     TEXT NOT NULL,
    since      INTEGER NOT NULL    -- ms since 1970
) STRICT, WITHOUT ROWID
