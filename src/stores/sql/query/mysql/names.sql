CREATE TABLE IF NOT EXISTS leasehold_names (
    id   BINARY(32) PRIMARY KEY,   -- SHA-256 of the name
    name MEDIUMBLOB NOT NULL
) ENGINE = InnoDB
