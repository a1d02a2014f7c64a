-- Shows one half of a read-write lock.
--
-- KEYS[1] lock    the lock's hash: mode -> read or write; reader -> hold count; writer:write -> hold count
-- ARGV[1] half    'read' or 'write'
-- ARGV[2] owner   the owner whose hold count is wanted
-- ARGV[3] markers  prefix of the owner's markers, one for each living level of a read hold: prefix .. level
--
-- Returns {'free'}                          no owner holds this half
--         {'held', ttl_ms, count, holder}   ttl_ms -1: for ever; count: that of the owner, '0' if it does not hold this
--                                           half
local lock = KEYS[1]
local half, owner, markers = ARGV[1], ARGV[2], ARGV[3]

local mode = redis.call('hget', lock, 'mode')
local ttl_ms = redis.call('pttl', lock)
-- In the mode write, a hash of two fields (`mode` and the writer's) has no reader, so the read half is free.
if not mode or half == 'write' and mode ~= 'write' or
  half == 'read' and mode == 'write' and redis.call('hlen', lock) <= 2 then
  return {'free'}
end
local suffix = ':write'
local holder
for _, field in ipairs(redis.call('hkeys', lock)) do
  local is_writer = string.sub(field, -#suffix) == suffix
  if field ~= 'mode' and is_writer == (half == 'write') then
    holder = field
    break
  end
end
local own = half == 'write' and owner .. suffix or owner
local count = redis.call('hget', lock, own) or '0'
if half == 'read' then
  -- A reader whose markers have expired holds nothing, but stays in the hash until another owner's release removes it.
  local is_alive = false
  for level = 1, tonumber(count) do
    is_alive = is_alive or redis.call('exists', markers .. level) == 1
  end
  count = is_alive and count or '0'
end
return {'held', ttl_ms, count, holder or ''}
