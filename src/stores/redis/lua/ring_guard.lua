-- Begins a script that is to run only under a ring's mark. Its own arguments are the last three; what follows
-- does not see them. The mark's key is among them: a ring's node is no member of a cluster, and what follows
-- finds its own keys where they always are.
--
-- KEYS[#KEYS] counter      the lock's fence counter, if a fence is wanted
-- ARGV[last - 2] earlier   the last fence that an earlier home gave out: later ones are larger; '0': none
-- ARGV[last - 1] bearer    where the node keeps the mark of the newest ring that it has heard of
-- ARGV[last] mark          the mark that the caller goes by
--
-- Returns {'other', mark}   the node bears another mark; '': none. Nothing was done
local last = #ARGV
local counter = KEYS[#KEYS]
local earlier, bearer, mark = ARGV[last - 2], ARGV[last - 1], ARGV[last]
ARGV[last - 2], ARGV[last - 1], ARGV[last] = nil, nil, nil
local borne = redis.call('get', bearer) or ''
if borne ~= mark then
  return {'other', borne}
end
if earlier ~= '0' and tonumber(redis.call('get', counter) or '0') < tonumber(earlier) then
  redis.call('set', counter, earlier)
end
