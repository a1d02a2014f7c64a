CREATE TABLE IF NOT EXISTS leasehold_locks (
    id         BINARY(32) PRIMARY KEY,   -- SHA-256 of the name, since a name may be longer than a key may be
    name       MEDIUMBLOB NOT NULL,
    token      BOOLEAN NOT NULL,         -- whether taken through get_token_lock
    owner      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,   -- client id:owner number; '' if free
    holds      INT UNSIGNED NOT NULL,
    expires_at DATETIME(6) NOT NULL,     -- UTC, by the server's clock; the lock is free from then on
    fence      BIGINT UNSIGNED NOT NULL, -- the last fencing token issued; never decreases
    host       VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL,   -- where the holder runs, for people to read
    pid        BIGINT UNSIGNED NOT NULL,
    thread     VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL,
    since      DATETIME(6) NOT NULL
) ENGINE = InnoDB COMMENT = 'leasehold format 1'
