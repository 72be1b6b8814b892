-- Deletes the lock if it is exactly the expected one, and notifies its waiters and the holders' agents. Also removes the waiters
-- of a fair lock that will never come, even if the lock is free.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: lock channel, read-write channel, prefix of the fair waiters' channels, most markers per hold,
--       value of `mode` (empty: absent), least and greatest PTTL in ms (empty: any), number of unexpected fields,
--       number of publishing commands, number of expected holders, those fields, those commands,
--       for each expected holder: its id, count, marker prefix and agent's channel
--       (empty: the client is not known),
--       then for each waiter known to be dead: its id and deadline in epoch ms (empty: none)
-- Replies {1, waiters removed[, error of a message]} released; {0, the same} already free; {2} changed; {3} not a lock.
local lock = KEYS[1]
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  return reply_to_failure(fields)
end
local unexpected, verbs, holders = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local first = 11 + unexpected + verbs
local last = first + 4 * holders - 1

local function publish(channel, message)
  announce(11 + unexpected, 10 + unexpected + verbs, channel, message)
end

-- Returns the number of waiters removed, after notifying the next one, which listens on a channel of its own.
local function call_next_waiter()
  if companion_error() then
    return 0
  end
  local removed, head = purge_waiters(now_ms(), last + 1)
  if head then
    publish(ARGV[3] .. head, '0')
  end
  return removed
end

if fields == 0 then
  return {0, call_next_waiter(), publish_error}
end
local mode = redis.call('HGET', lock, 'mode')
if (mode or '') ~= ARGV[5] or fields - (mode and 1 or 0) ~= unexpected + holders then
  return {2}
end
local least, greatest, left = tonumber(ARGV[6]), tonumber(ARGV[7]), redis.call('PTTL', lock)
if least and (left < least or left > greatest) then
  return {2}
end
for i = 11, 10 + unexpected do
  if redis.call('HEXISTS', lock, ARGV[i]) == 0 then
    return {2}
  end
end
for i = first, last, 4 do
  if redis.call('HGET', lock, ARGV[i]) ~= ARGV[i + 1] then
    return {2}
  end
end
redis.call('DEL', lock)

local removed = 0
if mode then
  -- 1 wakes all sleeping readers and writers; the zero is for waiters that are not asleep yet.
  publish(ARGV[2], '1')
  publish(ARGV[2], '00')
else
  publish(ARGV[1], '0')
  removed = call_next_waiter()
end
for i = first, last, 4 do
  if ARGV[i + 3] ~= '' then
    say('PUBLISH', ARGV[i + 3], ARGV[i] .. ' ' .. lock)
  end
  -- The lock is gone, so a marker that cannot be removed must not fail the script; it expires by itself.
  for n = 1, mode and math.min(tonumber(ARGV[i + 1]), tonumber(ARGV[4])) or 0 do
    redis.pcall('DEL', ARGV[i + 2] .. ':' .. n)
  end
end
return {1, removed, publish_error}
