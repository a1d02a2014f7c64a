CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_locks_wait_queue (
    id         bytea NOT NULL,         -- SHA-256 of the lock's name
    client     text NOT NULL,          -- the id of a client that waits for it
    channel    text NOT NULL,          -- the channel on which that client is told that it is next
    since      timestamptz NOT NULL,   -- by which they stand in order
    seen       timestamptz NOT NULL,   -- when it asked last, within 2 s
    is_next    boolean NOT NULL,       -- told that it is next, and not asked since
    reserved_until timestamptz,            -- the free lock is kept so long for the one that was told; before, a time since 1970: for how long
    PRIMARY KEY (id, client),
    UNIQUE (id, is_next, since, client)
) WITH (fillfactor = 50)
