-- Removes the holder, whatever its count, and notifies waiters. Starts with a command that a full Redis accepts.
-- KEYS: lock    ARGV: holder, channel, message, publishing commands...
-- Replies {1[, error of the message]} released; {0} hold missing, lock free; {2} hold missing, others hold the lock; {3} not a lock.
local lock = KEYS[1]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return reply_to_failure(removed)
end
if removed == 0 then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
-- EXISTS fails for a lock that is gone if its slot moves: such a key is the other node's.
if redis.pcall('EXISTS', lock) ~= 1 then
  announce(4, #ARGV, ARGV[2], ARGV[3])
end
return {1, publish_error}
