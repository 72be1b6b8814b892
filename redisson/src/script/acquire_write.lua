-- Wants: the write side held once by ARGV[1], with a lease.
-- KEYS: lock, fair queue, fair deadlines    ARGV: holder, lease ms
-- Replies as acquire.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local me, lease = ARGV[1], tonumber(ARGV[2])

local kind, holders = occupant(lock, 64)
if not kind then
  return {3, holders}
end

if kind == 'none' then
  if queue_has_turn(queue, deadlines) then
    return {2, 'fair'}
  end
  redis.call('HSET', lock, 'mode', 'write', me, 1)
  redis.call('PEXPIRE', lock, lease)
  return {1}
end

if kind == 'write' and redis.call('HEXISTS', lock, me) == 1 then
  -- An earlier copy of this very script was served.
  raise(lock, lease)
  redis.call('HSET', lock, me, 1)
  return {1}
elseif kind ~= 'read' and kind ~= 'write' then
  return {2, queue_has_turn(queue, deadlines) and 'fair' or kind}
end
return {0, redis.call('PTTL', lock), unpack(holders)}
