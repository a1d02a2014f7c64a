-- Prefix of scripts on a ring's node. The script that follows runs only if the node has the caller's mark. The prefix has
-- three arguments of its own, the last ones, and removes them. The mark's key is an argument rather than one of KEYS, so
-- that the script finds its keys in their usual places. Redis Cluster would refuse this, but a ring's node is never part of
-- a cluster.
--
-- KEYS[#KEYS] counter      the lock's fence counter, if a fence is wanted
-- ARGV[last - 2] earlier   the last fence that the lock's former home node issued, which new fences must exceed; '0': none
-- ARGV[last - 1] bearer    the key in which the node stores its mark
-- ARGV[last] mark          the mark of the caller's ring
--
-- Returns {'other', mark}   the node has a different mark, or '' if it has none; nothing changed
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
