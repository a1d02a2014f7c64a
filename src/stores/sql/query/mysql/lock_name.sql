-- Locks the row of a name until the transaction ends. Inserts the row if it is absent.
--
-- One statement does both, and locks the row exclusively from the start. SELECT … FOR UPDATE of an absent row would lock a
-- gap, which other transactions can lock too; then none of them could insert the row: a deadlock. INSERT IGNORE would take
-- a shared lock first and need an exclusive one later: also a deadlock.
--
-- :name
-- Changes a row if it was absent.
INSERT INTO leasehold_names (id, name) VALUES (UNHEX(SHA2(:name, 256)), :name) ON DUPLICATE KEY UPDATE id = id
