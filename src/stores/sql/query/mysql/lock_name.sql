-- Locks the row of a name until the transaction ends, making it where it is not there.
--
-- One statement for both, which asks for the row exclusively from the start. SELECT … FOR UPDATE of a name
-- that is not there would lock a gap, which others can lock too, and then nobody could insert into it: a
-- deadlock. INSERT IGNORE would share the row first and want it alone later: a deadlock too.
--
-- :name
--
-- Changes a row if it was not there.
INSERT INTO leasehold_names (id, name) VALUES (UNHEX(SHA2(:name, 256)), :name) ON DUPLICATE KEY UPDATE id = id
