-- Prefix of scripts on a ring's node. The script behind it runs only if the node stores the caller's mark, which is a
-- version of the ring (see `ring_mark.lua`). The prefix has three arguments of its own, the last ones, and removes them.
-- The mark's key is an argument rather than one of KEYS, so that the script finds its keys in their usual places. Redis
-- Cluster would refuse this, but a ring's node is never part of a cluster.
--
-- KEYS[#KEYS] counter      the lock's fence counter, if a fence is wanted
-- ARGV[last - 2] earlier   the last fence from the node that had this lock before the ring changed; new fences must exceed
--                          it; '0': none
-- ARGV[last - 1] mark_key  the key in which the node stores its mark
-- ARGV[last] mark          the mark of the caller's ring
--
-- Returns {'other', mark}   the node has a different mark, or '' if it has none; nothing changed
local last = #ARGV
local counter = KEYS[#KEYS]
local earlier, mark_key, mark = ARGV[last - 2], ARGV[last - 1], ARGV[last]
ARGV[last - 2], ARGV[last - 1], ARGV[last] = nil, nil, nil
local stored = redis.call('get', mark_key) or ''
if stored ~= mark then
  return {'other', stored}
end
if earlier ~= '0' and tonumber(redis.call('get', counter) or '0') < tonumber(earlier) then
  redis.call('set', counter, earlier)
end
