-- Prefix of scripts that run only under a ring's mark. Its arguments are the last three, which the script
-- behind it does not see. The mark's key is one of them, not one of KEYS, so that the script behind it finds
-- its keys in their usual places; a ring's node is no member of a cluster, which would refuse this.
--
-- KEYS[#KEYS] counter      the lock's fence counter, if a fence is wanted
-- ARGV[last - 2] earlier   the last fence that an earlier home gave out: later ones are larger; '0': none
-- ARGV[last - 1] bearer    where the node keeps the mark of the newest ring that it has heard of
-- ARGV[last] mark          the mark under which the caller asks
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
