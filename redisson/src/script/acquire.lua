-- Wants: the lock held once by ARGV[1], with a lease; for a fenced one, with a token above all before.
-- Only this and its like for other kinds may create a lock.
-- KEYS: lock, fair queue, fair deadlines[, token]    ARGV: holder, lease ms[, least token]
-- Numbers go to commands as the text they came as: turning them back into text costs more than the command.
-- Replies {1[, token]} had; {0, pttl, holder...} held by others; {2, mode or 'fair'} in use as another kind; {3, type} no lock.
local lock, queue, deadlines, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local me, lease, least = ARGV[1], ARGV[2], ARGV[3]

if counter and not can_count(counter) then
  return {3, 'lock whose token key holds no number'}
end

local function take()
  -- The token first: who dies between the two may skip a token, never share one.
  local token = counter and next_token(counter, least)
  redis.call('HSET', lock, me, '1')
  redis.call('PEXPIRE', lock, lease)
  return {1, token or nil}
end

if redis.call('EXISTS', lock, queue) == 0 then
  return take()
end

local kind, holders = occupant(lock, 0)
if not kind then
  return {3, holders}
end

if kind == 'lock' and redis.call('HEXISTS', lock, me) == 1 then
  -- An earlier copy of this very script was served: a number belongs to one grant.
  raise(lock, tonumber(lease))
  redis.call('HSET', lock, me, '1')
  return {1, counter and token_of_grant(counter, least) or nil}
end

if queue_has_turn(queue, deadlines) then
  return {2, 'fair'}
elseif kind == 'none' then
  return take()
elseif kind ~= 'lock' then
  return {2, kind}
end
return {0, redis.call('PTTL', lock), unpack(holders)}
