-- Wants: the lock gone, if it is exactly as the operator saw it; its waiters and the agents concerned told.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: lock channel, read-write channel, start of fair waiters' channels, most markers of a hold,
--       the value of `mode` (empty: none), most milliseconds to live (-1: any), number of other fields,
--       number of publishing commands, those fields, those commands,
--       then holder, count, its markers' prefix and its agent's channel for each holder seen
-- Replies {1} released; {0} was free already; {2} it has changed; {3} no lock.
local lock = KEYS[1]
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  return {3}
elseif fields == 0 then
  return {0}
end
local alien, verbs = tonumber(ARGV[7]), tonumber(ARGV[8])
local first = 9 + alien + verbs
local mode = redis.call('HGET', lock, 'mode')
if (mode or '') ~= ARGV[5] or fields - (mode and 1 or 0) ~= alien + (#ARGV - first + 1) / 4 then
  return {2}
end
local most = tonumber(ARGV[6])
if most >= 0 and redis.call('PTTL', lock) > most then
  return {2}
end
for i = 9, 8 + alien do
  if redis.call('HEXISTS', lock, ARGV[i]) == 0 then
    return {2}
  end
end
for i = first, #ARGV, 4 do
  if redis.call('HGET', lock, ARGV[i]) ~= ARGV[i + 1] then
    return {2}
  end
end
redis.call('DEL', lock)

local function publish(channel, message)
  for i = 9 + alien, 8 + alien + verbs do
    redis.call(ARGV[i], channel, message)
  end
end
if mode then
  -- 1 wakes every waiter, readers and writers; the zero is for who does not sleep yet.
  publish(ARGV[2], '1')
  publish(ARGV[2], '00')
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
