-- Reads or changes the number of a semaphore's free permits or a latch's count. A repeated request changes nothing, since
-- the first one recorded its result.
--
-- KEYS[1] counter    the number of free permits, or the latch's count
-- KEYS[2] request    records the result of this request
-- KEYS[3] acquired   the acquired permits, if this is an expirable semaphore; otherwise left out
-- ARGV[1] what       'ask', 'set_up', 'add', 'add_if_set_up', 'set_to', 'drain', 'count_down' or 'delete'
-- ARGV[2] amount     the number to set up or to add; for 'set_to', the wanted number of permits, including acquired ones
-- ARGV[3] lease_ms   for 'set_up': after how many ms the counter expires; 0: never
-- ARGV[4] lasts_ms   how long the result is recorded
-- ARGV[5] latch      '1': this is a latch, which publishes 1 when a count is set, and 0 when the count reaches zero
-- ARGV[6] channel    the channel on which waiters listen
--
-- Returns {'count', number}   the number, or the result of the change (see `Counting` in src/seam/kind.rs)
--         {'none'}            the counter is not set up
local counter, request, acquired = KEYS[1], KEYS[2], KEYS[3]
local what, amount, lease_ms, lasts_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local latch, channel = ARGV[5] == '1', ARGV[6]

local value = redis.call('get', counter)
local count = value and tonumber(value)
if value and not count then
  -- The key contains something else, such as a token lock, which this script must neither change nor delete.
  return {err = 'WRONGTYPE the key holds no number'}
end
if what == 'ask' then
  return count and {'count', count} or {'none'}
end
local was = redis.call('get', request)
if was then
  return {'count', tonumber(was)}
end

local result, payload
-- A latch whose count is zero is not set up, although Redisson may leave its key behind.
local is_set_up = count and not (latch and count <= 0)
if what == 'set_up' then
  result = is_set_up and 0 or 1
  payload = not is_set_up and (latch and math.min(amount, 1) or amount) or nil
elseif what == 'add' then
  result = (count or 0) + amount
  payload = result
elseif what == 'add_if_set_up' then
  result = count and 1 or 0
  payload = count and count + amount
elseif what == 'set_to' then
  result = amount - redis.call('zcard', acquired)
  payload = result > (count or 0) and result or nil
elseif what == 'drain' then
  result = count or 0
elseif what == 'count_down' then
  result = math.max((count or 0) - 1, 0)
  payload = count and result == 0 and 0 or nil
else
  result = count and 1 or 0
  payload = latch and count and 0 or nil
end

-- Lua's numbers are exact only up to this limit.
local most = 2 ^ 53 - 1
if math.abs(count or 0) > most or math.abs(result) > most then
  return {err = 'ERR the number is, or would be, not below 2^53'}
end

-- Records the result first: if the server refuses this write, the counter has not changed.
redis.call('set', request, result, 'PX', lasts_ms)
if what == 'set_up' and not is_set_up and (amount > 0 or not latch) then
  if lease_ms == '0' then
    redis.call('set', counter, amount)
  else
    redis.call('set', counter, amount, 'PX', lease_ms)
  end
elseif what == 'add' or what == 'add_if_set_up' and count then
  redis.call('incrby', counter, amount)
elseif what == 'set_to' then
  redis.call('incrby', counter, result - (count or 0))
elseif what == 'drain' and count then
  redis.call('set', counter, 0, 'KEEPTTL')
elseif what == 'delete' or what == 'count_down' and count and count <= 1 then
  redis.call('del', counter)
  if acquired then
    -- Permits that are still acquired must not come back to a later semaphore of the same name.
    redis.call('del', acquired)
  end
elseif what == 'count_down' and count then
  redis.call('decr', counter)
end
-- A semaphore publishes only numbers above zero: Redisson's listener fails on a negative one, and zero helps no waiter.
if payload and (latch or payload > 0) then
  redis.pcall('publish', channel, payload)
end
if payload and not latch then
  notify_for_permits(counter:find('{', 1, true) and counter or '{' .. counter .. '}', payload)
end
return {'count', result}
