-- Grants the read side once to ARGV[1], with a lease and its marker, next to other readers or under the owner's own write
-- hold.
-- KEYS: lock, fair queue, fair deadlines, marker prefix    ARGV: holder, lease ms, the owner's write hold or ''
-- Replies like acquire.
local lock, queue, deadlines, marker = KEYS[1], KEYS[2], KEYS[3], KEYS[4] .. ':1'
local holder, lease, own_write = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local kind, holders = lock_state(lock, 64)
if not kind then
  return {3, holders}
end

if kind == 'none' then
  if queue_has_living_head(queue, deadlines) then
    return {2, 'fair'}
  end
  redis.call('HSET', lock, 'mode', 'read', holder, 1)
  local refused = begin_lease(lock, lease)
  if refused then
    return refused
  end
elseif kind == 'write' then
  -- An earlier copy of this script may have run, whether or not the write hold still exists.
  if redis.call('HEXISTS', lock, holder) == 0 and (own_write == '' or redis.call('HEXISTS', lock, own_write) == 0) then
    return {0, redis.call('PTTL', lock), unpack(holders)}
  end
  redis.call('HSET', lock, holder, 1)
elseif kind == 'read' then
  redis.call('HSET', lock, holder, 1)
else
  return {2, queue_has_living_head(queue, deadlines) and 'fair' or kind}
end
ensure_lease(lock, lease)
redis.call('SET', marker, 1, 'PX', math.max(lease, redis.call('PTTL', marker)))
return {1}
