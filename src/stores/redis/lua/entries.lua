-- Reads entries of the directory of clients. Changes nothing.
--
-- The keys are the entries: strings, which end by themselves.
--
-- Returns {text, left_ms, …} of each, in order
--         text: '' if there is none, or it is something else; left_ms: what is left of its time
local entries = {}
for at, entry in ipairs(KEYS) do
  local text = redis.pcall('get', entry)
  entries[2 * at - 1] = type(text) == 'string' and text or ''
  entries[2 * at] = redis.call('pttl', entry)
end
return entries
