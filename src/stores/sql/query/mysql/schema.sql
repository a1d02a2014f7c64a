CREATE TABLE IF NOT EXISTS leasehold_locks (
    id         BINARY(32) PRIMARY KEY,   -- SHA-256 of the name: names may be longer than a key
    name       MEDIUMBLOB NOT NULL,
    token      BOOLEAN NOT NULL,         -- taken by get_token_lock
    owner      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,   -- client:number; '' if free
    holds      INT UNSIGNED NOT NULL,
    expires_at DATETIME(6) NOT NULL,     -- UTC, by the server's clock; free from then on
    fence      BIGINT UNSIGNED NOT NULL, -- the last one given; never goes back
    host       VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL,   -- who took it, for people to see
    pid        BIGINT UNSIGNED NOT NULL,
    thread     VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL,
    since      DATETIME(6) NOT NULL
) ENGINE = InnoDB COMMENT = 'leasehold format 1'
