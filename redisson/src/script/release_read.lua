-- Wants: the reader gone with its markers, whatever its count. What is left lives as long as the longest living reader's
-- marker; readers without one are dead and go with the last living one. Begins with what a full Redis accepts.
-- KEYS: lock, marker prefix, name as markers carry it
-- ARGV: holder, most markers of a hold, channel, message, publishing commands...
-- Replies {1} released; {0} was not there and the lock is free; {2} was not there, others hold it; {3} no lock.
local lock, prefix, tagged = KEYS[1], KEYS[2], KEYS[3]
local me, most = ARGV[1], tonumber(ARGV[2])
local had = redis.pcall('HGET', lock, me)
if type(had) == 'table' then
  return {3}
elseif not had then
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
redis.call('HDEL', lock, me)
for n = 1, math.min(tonumber(had) or 1, most) do
  redis.call('DEL', prefix .. ':' .. n)
end
-- Under a write hold the lease is the writer's.
if redis.call('HGET', lock, 'mode') == 'read' and ends_with_readers(lock, tagged, most) then
  for i = 5, #ARGV do
    redis.call(ARGV[i], ARGV[3], ARGV[4])
  end
end
return {1}
