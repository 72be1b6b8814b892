-- Publishes a message with each of the commands ARGV[first] and later. The hold has ended by then, even if the account may not
-- publish: the error becomes part of the reply.
local publish_error
local function announce(first, channel, message)
  for i = first, #ARGV do
    local said = redis.pcall(ARGV[i], channel, message)
    if type(said) == 'table' then
      publish_error = said.err
    end
  end
end

