-- Prefix of all scripts on a member of a cluster whose waiters listen to sharded channels or to plain ones.
--
-- The script behind it publishes by both SPUBLISH and PUBLISH. The larger number of receivers counts, since some listen to
-- both.
local server = redis
local redis = {
  call = server.call,
  acl_check_cmd = server.acl_check_cmd,
  pcall = function(command, ...)
    if command ~= 'publish' then
      return server.pcall(command, ...)
    end
    local sharded, plain = server.pcall('spublish', ...), server.pcall('publish', ...)
    if type(sharded) == 'number' and type(plain) == 'number' then
      return math.max(sharded, plain)
    end
    return type(sharded) == 'number' and sharded or plain
  end
}

