CREATE TABLE IF NOT EXISTS leasehold_locks_clients (
    client     TEXT PRIMARY KEY,   -- the client's id
    entry      TEXT NOT NULL,      -- lines, for people to see
    expires_at INTEGER NOT NULL,   -- ms since 1970, by the machine's clock
    lease_ms   INTEGER NOT NULL    -- an end further away than that proves that the clock was set back
) STRICT, WITHOUT ROWID
