-- Publishes messages after a hold has ended. If the account may not publish, the hold has ended all the same: the error becomes part of
-- the reply.
local publish_error
local function say(command, channel, message)
  local said = redis.pcall(command, channel, message)
  if type(said) == 'table' then
    publish_error = said.err
  end
end

-- Publishes a message with each of the commands ARGV[first] to ARGV[last].
local function announce(first, last, channel, message)
  for i = first, last do
    say(ARGV[i], channel, message)
  end
end

