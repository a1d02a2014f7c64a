-- Extends a lock that the owner holds to at least a lease from now.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 lease_ms
-- Changes a row if the owner holds the lock.
UPDATE leasehold_locks SET {rest_of_lease}
{if_held_by_owner}
