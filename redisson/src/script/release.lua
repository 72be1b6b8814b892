-- Removes the holder, whatever its count, and notifies waiters. Starts with a command that a full Redis accepts.
-- KEYS: lock    ARGV: holder, channel, message, publishing commands...
-- Replies {1[, error of the message]} released; {0} hold missing, lock free; {2} hold missing, others hold the lock; {3} not a lock.
local lock = KEYS[1]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return reply_to_failure(removed)
end
local left = redis.call('EXISTS', lock)
if removed == 0 then
  return {left == 0 and 0 or 2}
end
if left == 0 then
  announce(4, #ARGV, ARGV[2], ARGV[3])
end
return {1, publish_error}
