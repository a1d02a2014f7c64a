-- Prefix of all scripts on a member of a cluster whose waiters listen on sharded channels. The script that follows it
-- publishes by SPUBLISH instead of PUBLISH.
local server = redis
local redis = {
  call = server.call,
  acl_check_cmd = server.acl_check_cmd,
  pcall = function(command, ...)
    return server.pcall(command == 'publish' and 'spublish' or command, ...)
  end
}

