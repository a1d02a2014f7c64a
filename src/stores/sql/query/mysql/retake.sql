-- Sets the hold count of a lock that the owner holds, and extends the lock to at least a lease from now.
--
-- :name  :token  :owner  :lease_ms  :fenced  :count
-- Changes a row if the owner holds the lock; the fence is then the statement's insert id.
UPDATE leasehold_locks SET expires_at = GREATEST(expires_at, {lease_end}), fence = {fence}, holds = :count
WHERE {held_by_owner}
