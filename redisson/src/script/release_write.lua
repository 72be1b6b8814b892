-- Wants: the writer gone, whatever its count; its own readers left as readers. Whoever waits is told in either case, since
-- other readers may come in. Begins with what a full Redis accepts.
-- KEYS: lock    ARGV: holder, channel, message, publishing commands...
-- Replies {1} released; {0} was not there and the lock is free; {2} was not there, others hold it; {3} no lock.
local lock = KEYS[1]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return {3}
elseif removed == 0 then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
local has_mode = redis.call('HEXISTS', lock, 'mode')
if redis.call('HLEN', lock) > has_mode then
  if has_mode == 1 then
    redis.call('HSET', lock, 'mode', 'read')
  end
else
  redis.call('DEL', lock)
end
for i = 4, #ARGV do
  redis.call(ARGV[i], ARGV[2], ARGV[3])
end
return {1}
