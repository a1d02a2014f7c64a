-- Reads the server's version, and whether the server takes no writes.
-- Returns both.
SELECT VERSION(), {read_only}
