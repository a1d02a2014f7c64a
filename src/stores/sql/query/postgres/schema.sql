CREATE TABLE IF NOT EXISTS leasehold_locks (
    id         bytea PRIMARY KEY,      -- SHA-256 of the name: names may be longer than a key
    name       bytea NOT NULL,
    token      boolean NOT NULL,       -- taken by get_token_lock
    owner      text NOT NULL,          -- client:number; '' if free
    holds      integer NOT NULL,
    expires_at timestamptz NOT NULL,   -- by the server's clock; free from then on
    fence      bigint NOT NULL,        -- the last one given; never goes back
    host       text NOT NULL,          -- who took it, for people to see
    pid        bigint NOT NULL,
    thread     text NOT NULL,
    since      timestamptz NOT NULL,
    keeper     text                    -- its client keeps it until others ask for it on this channel; NULL: it does not, or they have
) WITH (fillfactor = 50);
COMMENT ON TABLE leasehold_locks IS 'leasehold format 1'
