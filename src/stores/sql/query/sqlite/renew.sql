-- Has a lock that the owner holds run for the lease at least.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 lease_ms
--
-- Changes a row if the owner holds it.
UPDATE leasehold_locks SET {rest_of_lease}
{if_held_by_owner}
