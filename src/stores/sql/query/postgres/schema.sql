CREATE TABLE IF NOT EXISTS leasehold_locks (
    id         bytea PRIMARY KEY,      -- SHA-256 of the name, since a name may be longer than a key may be
    name       bytea NOT NULL,
    token      boolean NOT NULL,       -- whether taken through get_token_lock
    owner      text NOT NULL,          -- client id:owner number; '' if free
    holds      integer NOT NULL,
    expires_at timestamptz NOT NULL,   -- by the server's clock; the lock is free from then on
    fence      bigint NOT NULL,        -- the last fencing token issued; never decreases
    host       text NOT NULL,          -- where the holder runs, for people to read
    pid        bigint NOT NULL,
    thread     text NOT NULL,
    since      timestamptz NOT NULL,
    keeper     text                    -- where to ask the holder to release a cached lock; NULL: not cached, or already asked
) WITH (fillfactor = 50);
COMMENT ON TABLE leasehold_locks IS 'leasehold format 1'
