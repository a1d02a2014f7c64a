-- The second half of `release.lua`: queued clients, re-entered holds, and owners that hold nothing. Between the halves
-- come the files that define its functions (see `script.rs`).
--
-- Returns what `release.lua` returns
if is_freed then
  local is_notified, is_unnotified = notify_next(lock, true, first)
  local listeners = redis.pcall('publish', channel, '0')
  if is_notified then
    return {'freed', -3}
  end
  listeners = type(listeners) == 'number' and listeners or -1
  return {'freed', listeners, is_unnotified and 'denied' or nil}
elseif left ~= '0' and redis.call('hexists', lock, owner) == 1 then
  -- Keeps the expiry. PEXPIRE is first: for lack of memory, Redis refuses only a script's first write, and never PEXPIRE.
  local ttl_ms = redis.call('pttl', lock)
  if ttl_ms == -1 then
    ttl_ms = tonumber(lease_ms)
  end
  redis.call('pexpire', lock, math.max(ttl_ms, 1))
  redis.call('hset', lock, owner, left)
  return {'still_held'}
elseif left ~= '0' then
  redis.call('hdel', lock, owner) -- fails on a replica, as in `release.lua`
end

if redis.call('pttl', lock) == -2 then
  return {'not_held'}
end
for _, holder in ipairs(redis.pcall('hkeys', lock)) do
  if holder:sub(1, 10) ~= 'leasehold:' then
    return {'not_held', holder}
  end
end
return {'not_held', ''}
