-- Grants the lock once to ARGV[1], with a lease; a fenced lock also gets a token above all earlier ones.
-- Only the acquire scripts and batch may create a lock.
-- KEYS: lock, fair queue, fair deadlines[, token]    ARGV: holder, lease ms[, least token]
-- Numbers are passed to commands as the text they arrived as: converting them costs more than the command.
-- Replies {1[, token]} granted; {0, pttl, holder...} held by others; {2, mode or 'fair'} in use as another kind;
-- {3, type} not a lock.
local lock, queue, deadlines, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, lease, least = ARGV[1], ARGV[2], ARGV[3]

if counter and not is_counter(counter) then
  return {3, 'lock whose token key holds no number'}
end

local function grant()
  -- The token comes first: a crash between the two may skip a token but never reuses one.
  local token = counter and next_token(counter, least)
  redis.call('HSET', lock, holder, '1')
  return begin_lease(lock, lease) or {1, token or nil}
end

if redis.call('EXISTS', lock, queue) == 0 then
  return grant()
end

local kind, holders = lock_state(lock, 0)
if not kind then
  return {3, holders}
end

if kind == 'lock' and redis.call('HEXISTS', lock, holder) == 1 then
  -- An earlier copy of this script has run: each number belongs to one grant.
  ensure_lease(lock, tonumber(lease))
  redis.call('HSET', lock, holder, '1')
  return {1, counter and token_of_grant(counter, least) or nil}
end

if queue_has_living_head(queue, deadlines) then
  return {2, 'fair'}
elseif kind == 'none' then
  return grant()
elseif kind ~= 'lock' then
  return {2, kind}
end
return {0, redis.call('PTTL', lock), unpack(holders)}
