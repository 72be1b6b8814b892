-- Wants: the lock held once by ARGV[1], with a lease, if it is free and nobody living stands before it; else, where asked
-- for, a place in the queue, or the place it has with a later deadline.
-- KEYS: lock, fair queue, fair deadlines    ARGV: holder, lease ms, own wait ms, '1' to queue or '0'
-- Replies as acquire; when refused, the milliseconds are until another look is worth while, and the queue's
-- head, if another, stands behind the holders.
local lock, me, lease, wait = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local kind, holders = occupant(lock, 0)
if not kind then
  return {3, holders}
elseif kind == 'read' or kind == 'write' then
  return {2, kind}
end
local odd = odd_companion()
if odd then
  return {3, odd}
end

if kind == 'lock' and redis.call('HEXISTS', lock, me) == 1 then
  -- An earlier copy of this very script was served.
  raise(lock, lease)
  redis.call('HSET', lock, me, 1)
  take_out(me, wait)
  return {1}
end

local now = milliseconds()
local head, head_deadline = living_head(now, me)
if kind == 'none' and (not head or head == me) then
  redis.call('HSET', lock, me, 1)
  redis.call('PEXPIRE', lock, lease)
  take_out(me, wait)
  return {1}
end

local pttl = redis.call('PTTL', lock)
if ARGV[4] == '1' then
  local place = redis.call('LPOS', queue, me)
  local before
  if not place then
    before = redis.call('LINDEX', queue, -1)
  elseif place > 0 then
    before = redis.call('LINDEX', queue, place - 1)
  end
  -- As far as one's own wait behind whoever stands before, else behind the holder.
  local score = before and redis.call('ZSCORE', deadlines, before)
  local base = math.max(now, tonumber(score or now + pttl))
  local mine = base + wait
  if place then
    -- A living waiter's deadline only grows, and passes nobody's behind it.
    local behind = redis.call('LINDEX', queue, place + 1)
    local limit = behind and redis.call('ZSCORE', deadlines, behind)
    local had = redis.call('ZSCORE', deadlines, me)
    mine = math.max(math.min(mine, tonumber(limit or mine)), tonumber(had or 0))
  else
    redis.call('RPUSH', queue, me)
  end
  redis.call('ZADD', deadlines, string.format('%.0f', mine), me)
end
if kind == 'none' then
  pttl = head_deadline - now
end
if head ~= me then
  holders[#holders + 1] = head or nil
end
return {0, pttl, unpack(holders)}
