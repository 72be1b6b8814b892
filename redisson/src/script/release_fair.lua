-- Wants: ARGV[1] neither holding the lock nor standing in its queue, and the next one in it told if the lock is free.
-- Serves releases, leaving the queue, and undoing what a late script has left. Begins with what a full Redis accepts.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: holder, own wait ms, start of the waiters' channels, message, publishing commands...
-- Replies {1} released; {0} was not there and the lock is free; {2} was not there, others hold it; {3} no lock.
local lock, me = KEYS[1], ARGV[1]
local removed = redis.pcall('HDEL', lock, me)
if type(removed) == 'table' then
  return {3}
end
local left = redis.call('EXISTS', lock)
if not odd_companion() then
  take_out(me, tonumber(ARGV[2]))
  local head = left == 0 and living_head(milliseconds())
  if head then
    for i = 5, #ARGV do
      redis.call(ARGV[i], ARGV[3] .. head, ARGV[4])
    end
  end
end
if removed == 1 then
  return {1}
end
return {left == 0 and 0 or 2}
