-- Reads the server's version, and whether it takes no writes.
--
-- Returns both.
SELECT VERSION(), {read_only}
