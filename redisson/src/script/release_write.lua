-- Wants: the writer gone, whatever its count; its own readers left as readers, if they live. Whoever waits is told in either
-- case, since other readers may come in. Begins with what a full Redis accepts.
-- KEYS: lock, name as markers carry it
-- ARGV: holder, most markers of a hold, channel, message, the same for who does not sleep yet, publishing commands...
-- Replies {1} released; {0} was not there and the lock is free; {2} was not there, others hold it; {3} no lock.
local lock, tagged = KEYS[1], KEYS[2]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return {3}
elseif removed == 0 then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
local has_mode = redis.call('HEXISTS', lock, 'mode')
if redis.call('HLEN', lock) == has_mode then
  redis.call('DEL', lock)
elseif has_mode == 1 then
  redis.call('HSET', lock, 'mode', 'read')
  ends_with_readers(lock, tagged, tonumber(ARGV[2]))
end
for i = 6, #ARGV do
  redis.call(ARGV[i], ARGV[3], ARGV[4])
  redis.call(ARGV[i], ARGV[3], ARGV[5])
end
return {1}
