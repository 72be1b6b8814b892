-- Passes the lock from one holder of this client to another, at count 1 with the new holder's lease; a fenced lock also gets
-- a token above all earlier ones.
-- KEYS: lock[, token]    ARGV: from, to, lease ms, channel[, least token]
-- Replies {1, subscribers or -1[, token]} passed; {0} the lock is gone; {2} others hold it; {3} not a lock.
local lock, counter = KEYS[1], KEYS[2]
local from, to, least = ARGV[1], ARGV[2], ARGV[5]
local held = redis.pcall('HEXISTS', lock, from)
if type(held) == 'table' then
  return reply_to_failure(held)
end
local token
if held == 1 then
  -- PEXPIRE first: a full Redis refuses the rest unless the script has already written. HSET before HDEL: the key must not
  -- disappear.
  redis.call('PEXPIRE', lock, ARGV[3])
  token = counter and next_token(counter, least)
  redis.call('HSET', lock, to, '1')
  redis.call('HDEL', lock, from)
elseif redis.call('HEXISTS', lock, to) == 1 then
  -- An earlier copy has run. The sender of this one counts the lease from now.
  if redis.call('PTTL', lock) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', lock, ARGV[3])
  end
  token = counter and token_of_grant(counter, least)
else
  return {redis.call('EXISTS', lock) == 0 and 0 or 2}
end
local subscribers = redis.pcall('PUBSUB', 'NUMSUB', ARGV[4])
return {1, subscribers.err and -1 or subscribers[2], token or nil}
