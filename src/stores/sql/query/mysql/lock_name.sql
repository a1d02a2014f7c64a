-- Locks the row of a name until the transaction ends. Inserts the row if it is absent.
--
-- This statement locks the row exclusively from the start, since two other ways deadlock. SELECT … FOR UPDATE of an absent
-- row locks a gap; several transactions can lock it, and then none of them can insert the row. INSERT IGNORE takes a shared
-- lock first; several transactions can have it, and then none of them gets the exclusive lock.
--
-- :name
-- Changes a row if it was absent.
INSERT INTO leasehold_names (id, name) VALUES (UNHEX(SHA2(:name, 256)), :name) ON DUPLICATE KEY UPDATE id = id
