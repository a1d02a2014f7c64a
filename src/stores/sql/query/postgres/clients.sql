CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_locks_clients (
    client     text PRIMARY KEY,       -- the client's id
    entry      text NOT NULL,          -- text for people to read
    expires_at timestamptz NOT NULL    -- by the server's clock
)
