-- Wants: one dead waiter out of a fair lock's queue, if its deadline is still the one that the operator saw; the next one
-- told if the lock is free. One without a deadline is dead too: nobody else would ever remove it.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: waiter, its deadline in epoch ms (empty: none), start of the waiters' channels, publishing commands...
-- Replies {1} removed; {0} does not stand there; {2} has another deadline by now, or one to come; {3} no queue.
if odd_companion() then
  return {3}
end
local waiter, now = ARGV[1], milliseconds()
local place, deadline = redis.call('LPOS', queue, waiter), redis.call('ZSCORE', deadlines, waiter)
if not place and not deadline then
  return {0}
elseif tonumber(deadline or -1) ~= tonumber(ARGV[2] ~= '' and ARGV[2] or -1) or tonumber(deadline or -1) > now then
  return {2}
end
-- Those behind keep their deadlines: how long it meant to wait is not known.
take_out(waiter, 0)
local head = redis.call('EXISTS', KEYS[1]) == 0 and living_head(now)
if head then
  for i = 4, #ARGV do
    redis.call(ARGV[i], ARGV[3] .. head, '0')
  end
end
return {1}
