-- Removes ARGV[1] from the lock and from its queue, and notifies the next waiter if the lock is free.
-- Used for releasing, for leaving the queue, and for undoing a late script. Starts with a command that a full Redis accepts.
-- KEYS: lock, fair queue, fair deadlines
-- ARGV: holder, own wait ms, the first holder id of this run of the agent, prefix of the waiters' channels, message,
--       publishing commands...
-- Replies {1[, error of the message]} released; {0} hold missing, lock free; {2} hold missing, others hold the lock; {3} not a lock.
local lock, holder = KEYS[1], ARGV[1]
local removed = redis.pcall('HDEL', lock, holder)
-- A waiter leaves the queue even if the lock has become a key of another type.
local failure = type(removed) == 'table' and reply_to_failure(removed)
if failure and failure.err then
  return failure
end
-- EXISTS fails for a lock that has just gone if its slot moves: such a key is the other node's.
local exists = removed == 1 and redis.pcall or redis.call
local is_free = exists('EXISTS', lock) ~= 1
if not companion_error() then
  leave_queue(holder, tonumber(ARGV[2]))
  local head = is_free and living_head(now_ms(), nil, ARGV[3])
  if head then
    announce(6, #ARGV, ARGV[4] .. head, ARGV[5])
  end
end
if removed == 1 then
  return {1, publish_error}
end
return failure or {is_free and 0 or 2}
