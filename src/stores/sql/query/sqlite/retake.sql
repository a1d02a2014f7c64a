-- Sets the hold count of a lock that the owner holds, and extends the lock to at least a lease from now.
--
-- ?1 boot  ?2 up_ms  ?3 name  ?4 token  ?5 owner  ?6 lease_ms  ?7 fenced  ?8 count
-- Returns the fence, if the owner holds the lock.
UPDATE leasehold_locks SET
    holds = ?8, {rest_of_lease}, fence = CASE WHEN ?7 THEN max(fence + 1, wall * 1000) ELSE fence END
{if_held_by_owner}
RETURNING fence
