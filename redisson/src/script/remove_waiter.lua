-- Removes one dead waiter from a fair lock's queue if its deadline is still the expected one, and notifies the next waiter if
-- the lock is free. A waiter without a deadline is dead too: nothing else would ever remove it.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: waiter, its deadline in epoch ms (empty: none), prefix of the waiters' channels, publishing commands...
-- Replies {1[, error of the message]} removed; {0} not in the queue; {2} another deadline, or one in the future; {3} not a queue.
if companion_error() then
  return {3}
end
local waiter, now = ARGV[1], now_ms()
local index, deadline = redis.call('LPOS', queue, waiter), redis.call('ZSCORE', deadlines, waiter)
if not index and not deadline then
  return {0}
elseif tonumber(deadline or -1) ~= tonumber(ARGV[2] ~= '' and ARGV[2] or -1) or tonumber(deadline or -1) > now then
  return {2}
end
-- The waiters behind it keep their deadlines: its own wait is unknown.
leave_queue(waiter, 0)
local head = redis.call('EXISTS', KEYS[1]) == 0 and living_head(now)
if head then
  announce(4, #ARGV, ARGV[3] .. head, '0')
end
return {1, publish_error}
