CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_locks_wait_queue (
    id         bytea NOT NULL,         -- SHA-256 of the lock's name
    client     text NOT NULL,          -- the id of a client that waits for the lock
    channel    text NOT NULL,          -- the channel on which the client is notified that it is next
    since      timestamptz NOT NULL,   -- when the client joined; orders the queue
    seen       timestamptz NOT NULL,   -- when the client last made an attempt; written at most every 2 s
    is_next    boolean NOT NULL,       -- notified that it is next, without an attempt since
    reserved_until timestamptz,            -- is_next: when the reservation ends; otherwise 1970-01-01 plus its length
    PRIMARY KEY (id, client),
    UNIQUE (id, is_next, since, client)
) WITH (fillfactor = 50)
