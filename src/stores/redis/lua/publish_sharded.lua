-- Prefix of all scripts on a member of a cluster whose waiters listen to sharded channels.
--
-- The script behind it publishes by SPUBLISH.
local server = redis
local redis = {
  call = server.call,
  acl_check_cmd = server.acl_check_cmd,
  pcall = function(command, ...)
    return server.pcall(command == 'publish' and 'spublish' or command, ...)
  end
}

