-- Removes the waiters of a fair lock that will never come, and notifies the next one if the lock is free.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: prefix of the waiters' channels, number of publishing commands, those commands,
--       then for each waiter known to be dead: its id and deadline in epoch ms (empty: none)
-- Replies {1, waiters removed[, error of the message]}; {3} not a queue.
if companion_error() then
  return {3}
end
local verbs = tonumber(ARGV[2])
local removed, head = purge_waiters(now_ms(), 3 + verbs)
if head and redis.call('EXISTS', KEYS[1]) == 0 then
  announce(3, 2 + verbs, ARGV[1] .. head, '0')
end
return {1, removed, publish_error}
