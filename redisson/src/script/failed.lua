-- Returns the script's reply after a command on the lock has failed: {3} if the key is of another type. Any other error is that of a
-- server that refuses the command for now, such as one that takes no writes, and says nothing of the lock.
local function reply_to_failure(failure)
  return string.find(failure.err, 'WRONGTYPE', 1, true) and {3} or failure
end

