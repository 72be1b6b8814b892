-- Removes the writer, whatever its count. Its own read holds, if alive, remain as readers. Notifies waiters either way, since
-- other readers may enter. Starts with a command that a full Redis accepts.
-- KEYS: lock, tagged name
-- ARGV: holder, most markers per hold, channel, message, message for waiters not asleep yet, publishing commands...
-- Replies {1[, error of the message]} released; {0} hold missing, lock free; {2} hold missing, others hold the lock; {3} not a lock.
local lock, tagged = KEYS[1], KEYS[2]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return reply_to_failure(removed)
elseif removed == 0 then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
local has_mode = redis.call('HEXISTS', lock, 'mode')
if redis.call('HLEN', lock) == has_mode then
  redis.call('DEL', lock)
elseif has_mode == 1 then
  redis.call('HSET', lock, 'mode', 'read')
  expire_with_readers(lock, tagged, tonumber(ARGV[2]))
end
announce(6, #ARGV, ARGV[3], ARGV[4])
announce(6, #ARGV, ARGV[3], ARGV[5])
return {1, publish_error}
