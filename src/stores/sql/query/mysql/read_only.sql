-- Returns whether the server takes no writes.
SELECT {read_only}
