CREATE TABLE IF NOT EXISTS leasehold_locks_clients (
    client     CHAR(36) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,   -- the client's id
    entry      MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,   -- text for people to read
    expires_at DATETIME(6) NOT NULL                         -- UTC, by the server's clock
) ENGINE = InnoDB
