-- Prefix of all scripts on a member of a cluster where some waiters listen on sharded channels and some on plain ones.
--
-- The script behind this prefix publishes by SPUBLISH and PUBLISH. The prefix replaces redis.pcall only, since no script
-- publishes by redis.call. The reply is the larger number of receivers, not the sum, since some waiters listen on both.
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

