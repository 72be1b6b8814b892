-- Wants: the holder gone, whatever its count, and whoever waits told. Begins with what a full Redis accepts.
-- KEYS: lock    ARGV: holder, channel, message, publishing commands...
-- Replies {1} released; {0} was not there and the lock is free; {2} was not there, others hold it; {3} no lock.
local lock = KEYS[1]
local removed = redis.pcall('HDEL', lock, ARGV[1])
if type(removed) == 'table' then
  return {3}
end
local left = redis.call('EXISTS', lock)
if removed == 0 then
  return {left == 0 and 0 or 2}
end
if left == 0 then
  for i = 4, #ARGV do
    redis.call(ARGV[i], ARGV[2], ARGV[3])
  end
end
return {1}
