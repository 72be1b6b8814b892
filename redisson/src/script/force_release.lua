-- Wants: the lock gone, if it is exactly as the operator saw it; its waiters and the agents concerned told.
-- KEYS: lock    ARGV: channel, message, number of publishing commands, those commands,
--               then holder, count, its agent's channel for each holder seen
-- Replies {1} released; {0} was free already; {2} it has changed; {3} no lock.
local lock = KEYS[1]
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  return {3}
end
if fields == 0 then
  return {0}
end
local verbs = tonumber(ARGV[3])
local first = 4 + verbs
if fields ~= (#ARGV - first + 1) / 3 then
  return {2}
end
for i = first, #ARGV, 3 do
  if redis.call('HGET', lock, ARGV[i]) ~= ARGV[i + 1] then
    return {2}
  end
end
redis.call('DEL', lock)
for i = 4, 3 + verbs do
  redis.call(ARGV[i], ARGV[1], ARGV[2])
end
for i = first, #ARGV, 3 do
  redis.call('PUBLISH', ARGV[i + 2], ARGV[i] .. ' ' .. lock)
end
return {1}
