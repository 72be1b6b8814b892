-- Removes the reader and its markers, whatever its count. The lock then lives as long as the longest marker of a living
-- reader; readers without markers are dead and disappear with the last living one. Starts with a command that a full Redis
-- accepts.
-- KEYS: lock, marker prefix, tagged name
-- ARGV: holder, most markers per hold, channel, message, publishing commands...
-- Replies {1[, error of the message]} released; {0} hold missing, lock free; {2} hold missing, others hold the lock; {3} not a lock.
local lock, prefix, tagged = KEYS[1], KEYS[2], KEYS[3]
local holder, most = ARGV[1], tonumber(ARGV[2])
local count = redis.pcall('HGET', lock, holder)
if type(count) == 'table' then
  return reply_to_failure(count)
elseif not count then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
redis.call('HDEL', lock, holder)
for n = 1, math.min(tonumber(count) or 1, most) do
  redis.call('DEL', prefix .. ':' .. n)
end
-- Under a write hold the lease is the writer's.
if redis.call('HGET', lock, 'mode') == 'read' and expire_with_readers(lock, tagged, most) then
  announce(5, #ARGV, ARGV[3], ARGV[4])
end
return {1, publish_error}
