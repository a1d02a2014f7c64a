CREATE TABLE IF NOT EXISTS leasehold_names (
    id   bytea PRIMARY KEY,   -- SHA-256 of the name
    name bytea NOT NULL
)
