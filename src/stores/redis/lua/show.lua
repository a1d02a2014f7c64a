-- Shows all that is stored under a name, whatever its kind. Changes nothing.
--
-- KEYS[1] object       a lock is a hash: owner -> hold count, and perhaps two notes, which Redisson ignores:
--                      leasehold:about -> 'owner since_ms ends_ms pid host thread', for people; leasehold:cached -> '',
--                      until a waiter has sent a recall (see `recall.lua`). A read-write lock is a hash as in
--                      `rw_acquire.lua`. Counters and token locks are strings
-- KEYS[2] counter      the lock's fence counter
-- KEYS[3] queue        the waiters for a fair lock, in order of arrival
-- KEYS[4] timeouts     until when Redisson considers each waiter alive
-- KEYS[5] heartbeats   until when each waiter of this crate counts as alive
-- KEYS[6] acquired     id of an acquired permit -> when its lease ends
-- ARGV[1] base         prefix of the markers, one for each living level of a reader: base:reader:rwlock_timeout:level
-- ARGV[2] most         maximum number of waiters and of permits to show
--         channels     all further arguments: the channels of the kinds of locks, on which waiters listen
--
-- The wait queue (see `wait_queue.lua`) and the set of waiting writers (see `rw_acquire.lua`) are not among KEYS, so that a
-- user without a right to these keys can still use the script, and just sees no waiters there.
--
-- Returns {type, ttl_ms, now_ms, fence, value, back, acquired, permits, holders, waiting, waiters, listeners, queued,
--         wait_queue, writers_wait}
--         fence, value: '' if there is none
--         back: the number of permits whose leases have ended, which can be acquired again
--         acquired: the number of other acquired permits; permits: id, ends_ms, … of these
--         holders: field, value, ttl_ms, …; ttl_ms: of a reader, the longest expiry of its markers; -2: all have
--         expired; -3: not read
--         waiting: the number of waiters for a fair lock; waiters: owner, until_ms, … of these
--         listeners: the number on each channel; -1: unknown
--         queued: the number of clients in the wait queue; wait_queue: client, waited_ms, … of these
--         writers_wait: while readers hold the lock: 1, if a writer waits that has `writers_first`, plus 2, if the first
--         writer has waited so long that new readers wait for it
local object, counter, queue, timeouts, heartbeats, acquired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local base, most = ARGV[1], tonumber(ARGV[2])

local time = redis.call('time')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = redis.call('type', object)['ok']
local value, holders, waiters, permits = '', {}, {}, {}
local back, acquired_count, writers_wait = 0, 0, 0

-- The key may belong to another program and have any size, but must not block the server or the connection. These limits
-- bound what the script shows. Of a hash with more fields, it shows only their number.
local most_fields, most_levels, most_bytes = 1000, 1000, 512
-- Limit on the markers read for all holders together. The expiry of a holder whose markers are not read is unknown.
local markers_left = 2000
if kind == 'hash' and redis.call('hlen', object) <= most_fields then
  local mode = redis.call('hget', object, 'mode')
  local is_rw = mode == 'read' or mode == 'write'
  local fields = redis.call('hgetall', object)
  for at = 1, #fields, 2 do
    local longest_ms = -2
    if is_rw then
      local levels = math.max(math.min(tonumber(fields[at + 1]) or 0, most_levels), 0)
      if not (levels <= markers_left) then -- also if the field contains 'nan'
        levels, longest_ms = 0, -3
      end
      markers_left = markers_left - levels
      for level = 1, levels do
        local marker = base .. ':' .. fields[at] .. ':rwlock_timeout:' .. level
        longest_ms = math.max(longest_ms, redis.call('pttl', marker))
      end
    end
    holders[#holders + 1] = string.sub(fields[at], 1, most_bytes)
    holders[#holders + 1] = string.sub(fields[at + 1], 1, most_bytes)
    holders[#holders + 1] = longest_ms
  end
  if mode == 'read' then
    local last = redis.pcall('zrange', 'leasehold_rwlock_waiting:' .. base, -1, -1, 'WITHSCORES')
    writers_wait = (tonumber(last[2]) or 0) > now_ms and 1 or 0
    -- The 50 ms are PATIENCE_MS of `rw_acquire.lua`.
    local first = redis.pcall('zrange', 'leasehold_lock_queue:' .. base, 0, 0, 'WITHSCORES')
    if first[2] and 1700000000000 + first[2] / 10000 + 50 <= now_ms then
      writers_wait = writers_wait + 2
    end
  end
elseif kind == 'hash' then
  kind = 'hash of ' .. redis.call('hlen', object) .. ' fields'
elseif kind == 'string' then
  value = string.sub(redis.call('get', object), 1, most_bytes)
  back = redis.call('zcount', acquired, 0, now_ms)
  local is_out = '(' .. string.format('%.0f', now_ms)
  acquired_count = redis.call('zcount', acquired, is_out, '+inf')
  permits = redis.call('zrangebyscore', acquired, is_out, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
end

for _, waiter in ipairs(redis.call('lrange', queue, 0, most - 1)) do
  local until_ms = redis.call('zscore', heartbeats, waiter) or redis.call('zscore', timeouts, waiter)
  waiters[#waiters + 1] = waiter
  waiters[#waiters + 1] = tonumber(until_ms or 0)
end

-- The subscribers of each channel. -1: the user may count neither plain nor sharded subscribers. Redis before 7 has
-- no sharded channels.
local listeners = {}
for _, channel in ipairs({unpack(ARGV, 3)}) do
  local plain = redis.pcall('pubsub', 'numsub', channel)
  local sharded = redis.pcall('pubsub', 'shardnumsub', channel)
  local receivers = -1
  for _, counted in ipairs({plain, sharded}) do
    if counted[2] then
      receivers = math.max(receivers, 0) + counted[2]
    end
  end
  listeners[#listeners + 1] = receivers
end

local queue_key = 'leasehold_lock_queue:' .. base
local wait_queue, queued = {}, 0
local joined = redis.pcall('zrange', queue_key, 0, most - 1, 'WITHSCORES')
for at = 1, #joined, 2 do
  wait_queue[at] = joined[at]
  wait_queue[at + 1] = math.floor(((time[1] - 1700000000) * 10000000 + time[2] * 10 - joined[at + 1]) / 10000)
end
if #wait_queue > 0 then
  queued = redis.pcall('zcard', queue_key)
  queued = type(queued) == 'number' and queued or #wait_queue / 2
end

local fence = redis.call('get', counter) or ''
local waiting = redis.call('llen', queue)
local ttl_ms = redis.call('pttl', object)
return {
  kind, ttl_ms, now_ms, fence, value, back, acquired_count, permits, holders, waiting, waiters, listeners, queued,
  wait_queue, writers_wait,
}
