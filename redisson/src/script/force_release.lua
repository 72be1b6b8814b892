-- Wants: the lock gone, if it is exactly as the operator saw it; its waiters and the agents concerned told.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: lock channel, read-write channel, start of fair waiters' channels, most markers of a hold,
--       number of publishing commands, those commands,
--       then holder, count, its markers' prefix and its agent's channel for each holder seen
-- Replies {1} released; {0} was free already; {2} it has changed; {3} no lock.
local lock = KEYS[1]
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  return {3}
elseif fields == 0 then
  return {0}
end
local verbs = tonumber(ARGV[5])
local first = 6 + verbs
local mode = redis.call('HEXISTS', lock, 'mode')
if fields - mode ~= (#ARGV - first + 1) / 4 then
  return {2}
end
for i = first, #ARGV, 4 do
  if redis.call('HGET', lock, ARGV[i]) ~= ARGV[i + 1] then
    return {2}
  end
end
redis.call('DEL', lock)

local function publish(channel, message)
  for i = 6, 5 + verbs do
    redis.call(ARGV[i], channel, message)
  end
end
if mode == 1 then
  -- 1 wakes every waiter, readers and writers.
  publish(ARGV[2], '1')
else
  publish(ARGV[1], '0')
  -- A fair lock's waiters listen each for itself.
  local head = not odd_companion() and living_head(milliseconds())
  if head then
    publish(ARGV[3] .. head, '0')
  end
end
for i = first, #ARGV, 4 do
  for n = 1, math.min(tonumber(ARGV[i + 1]), tonumber(ARGV[4])) do
    redis.call('DEL', ARGV[i + 2] .. ':' .. n)
  end
  redis.call('PUBLISH', ARGV[i + 3], ARGV[i] .. ' ' .. lock)
end
return {1}
