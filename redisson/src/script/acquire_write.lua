-- Grants the write side once to ARGV[1], with a lease.
-- KEYS: lock, fair queue, fair deadlines    ARGV: holder, lease ms
-- Replies like acquire.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local holder, lease = ARGV[1], tonumber(ARGV[2])

local kind, holders = lock_state(lock, 64)
if not kind then
  return {3, holders}
end

if kind == 'none' then
  if queue_has_living_head(queue, deadlines) then
    return {2, 'fair'}
  end
  redis.call('HSET', lock, 'mode', 'write', holder, 1)
  return begin_lease(lock, lease) or {1}
end

if kind == 'write' and redis.call('HEXISTS', lock, holder) == 1 then
  -- An earlier copy of this script has run.
  ensure_lease(lock, lease)
  redis.call('HSET', lock, holder, 1)
  return {1}
elseif kind ~= 'read' and kind ~= 'write' then
  return {2, queue_has_living_head(queue, deadlines) and 'fair' or kind}
end
return {0, redis.call('PTTL', lock), unpack(holders)}
