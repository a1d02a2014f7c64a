-- Reads one page of SCAN, and leaves out the keys that contain no lock. Changes nothing.
--
-- ARGV[1] cursor       where the page begins
-- ARGV[2] pattern      only keys that match this pattern
-- ARGV[3] count        how many slots of the server's hash table a page scans
--
-- The keys that the script reads are not among KEYS, since only SCAN tells their names. A key that the user may not read,
-- or that this node does not serve, counts as a lock, so that the later inspection of the key reports the error.
--
-- Returns {cursor, keys, number}
--         cursor: '0' after the last page; keys: those that may contain a lock; number: how many keys matched the pattern
local cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3]
local page = redis.pcall('scan', cursor, 'match', pattern, 'count', count)
if page.err then
  return page
end

local call, find = redis.pcall, string.find
-- An owner as clients write it: a UUID, a colon and a number, 38 to 57 bytes in all.
local owner = '%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+:%-?%d'

local function is_unreadable(reply)
  return not find(reply.err, '^WRONGTYPE')
end

-- Each field of a lock's hash is an owner or describes one, so a few fields of a hash show whether it is a lock.
local function is_held(key)
  local some = call('hscan', key, 0, 'count', 10)
  if some.err then
    return is_unreadable(some)
  end
  local fields = some[2]
  for at = 1, #fields, 2 do
    if fields[at] == 'mode' or find(fields[at], owner) then
      return true
    end
  end
  return false
end

-- Whether the value is a token lock's token, or the count of an expirable semaphore, whose acquired permits are in
-- `{name}:timeout`.
local function is_token_or_permits(key, value)
  if #value > 37 then
    return find(value, owner)
  end
  if not tonumber(value) then
    return false
  end
  local acquired = call('exists', (find(key, '{', 1, true) and key or '{' .. key .. '}') .. ':timeout')
  return acquired ~= 0
end

local keys = {}
for _, key in ipairs(page[2]) do
  local value = call('getrange', key, 0, 57)
  local may_be_lock
  if type(value) == 'string' then
    may_be_lock = is_token_or_permits(key, value)
  else
    may_be_lock = is_unreadable(value) or is_held(key)
  end
  if may_be_lock then
    keys[#keys + 1] = key
  end
end
return {page[1], keys, #page[2]}
