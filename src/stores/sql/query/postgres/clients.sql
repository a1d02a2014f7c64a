CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_locks_clients (
    client     text PRIMARY KEY,       -- the client's id
    entry      text NOT NULL,          -- lines, for people to see
    expires_at timestamptz NOT NULL    -- by the server's clock
)
