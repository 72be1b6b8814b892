-- Wants: the lock passed from one holder of this client to another, at count 1 with the new holder's lease.
-- KEYS: lock    ARGV: from, to, lease ms, channel
-- Replies {1, subscribers or -1} passed; {0} gone; {2} others hold it; {3} no lock.
local lock, from, to = KEYS[1], ARGV[1], ARGV[2]
local had = redis.pcall('HEXISTS', lock, from)
if type(had) == 'table' then
  return {3}
end
if had == 1 then
  -- PEXPIRE first: a full Redis lets the HSET pass only behind a write. Set before remove: the key must not vanish.
  redis.call('PEXPIRE', lock, ARGV[3])
  redis.call('HSET', lock, to, 1)
  redis.call('HDEL', lock, from)
elseif redis.call('HEXISTS', lock, to) == 1 then
  -- An earlier copy was served. Whoever sent this one counts the lease from now.
  if redis.call('PTTL', lock) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', lock, ARGV[3])
  end
else
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
local subscribers = redis.pcall('PUBSUB', 'NUMSUB', ARGV[4])
if subscribers.err then
  return {1, -1}
end
return {1, subscribers[2]}
