-- Reads entries of the directory, in which each client names its process, its holds and its waits. Changes nothing.
--
-- The keys are the entries: strings with an expiry.
--
-- Returns {text, left_ms, …}: the text and the remaining time of each entry, in the order of the keys
--         text: '' if the entry is absent or is no string
local entries = {}
for at, entry in ipairs(KEYS) do
  local text = redis.pcall('get', entry)
  entries[2 * at - 1] = type(text) == 'string' and text or ''
  entries[2 * at] = redis.call('pttl', entry)
end
return entries
