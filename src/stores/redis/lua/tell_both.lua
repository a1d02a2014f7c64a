-- Stands before each script that runs on a member of a cluster whose waiters listen to sharded channels or to
-- plain ones.
--
-- Returns nothing: what follows does, and what it publishes goes out by SPUBLISH and by PUBLISH. The most that either
-- reached counts as the listeners: some of them listen in both ways.
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

