CREATE TABLE IF NOT EXISTS leasehold_locks_clients (
    client     TEXT PRIMARY KEY,   -- the client's id
    entry      TEXT NOT NULL,      -- text for people to read
    expires_at INTEGER NOT NULL,   -- ms since 1970, by the machine's clock
    lease_ms   INTEGER NOT NULL    -- if the end is further away than this, the clock was set back
) STRICT, WITHOUT ROWID
