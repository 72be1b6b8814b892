-- Wants: the lock held once by ARGV[1], with a lease. The only script that may create a lock.
-- KEYS: lock, fair queue, fair deadlines    ARGV: holder, lease ms
-- Replies {1} had; {0, pttl, holder...} held by others; {2, mode or 'fair'} in use as another kind; {3, type} no lock.
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local me, lease = ARGV[1], tonumber(ARGV[2])

if redis.call('EXISTS', lock, queue) == 0 then
  redis.call('HSET', lock, me, 1)
  redis.call('PEXPIRE', lock, lease)
  return {1}
end

local kind = redis.call('TYPE', lock).ok
if kind ~= 'hash' and kind ~= 'none' then
  return {3, kind}
end

if kind == 'hash' and redis.call('HEXISTS', lock, me) == 1 then
  -- An earlier copy of this very script was served: a number belongs to one grant.
  if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
  end
  redis.call('HSET', lock, me, 1)
  return {1}
end

-- A fair lock's head whose deadline is still to come has the next turn, whether the lock is held or free.
if redis.call('TYPE', queue).ok == 'list' then
  local head = redis.call('LINDEX', queue, 0)
  local score = redis.pcall('ZSCORE', deadlines, head)
  if type(score) == 'string' then
    local time = redis.call('TIME')
    if tonumber(score) > time[1] * 1000 + math.floor(time[2] / 1000) then
      return {2, 'fair'}
    end
  end
end

if kind == 'none' then
  redis.call('HSET', lock, me, 1)
  redis.call('PEXPIRE', lock, lease)
  return {1}
end

if redis.call('HLEN', lock) > 8 then
  if redis.call('HEXISTS', lock, 'mode') == 1 then
    return {2, 'read'}
  end
  return {3, 'hash with other fields'}
end
local holders = {}
for _, field in ipairs(redis.call('HKEYS', lock)) do
  if field == 'mode' then
    return {2, redis.call('HSTRLEN', lock, 'mode') < 8 and redis.call('HGET', lock, 'mode') or 'read'}
  end
  if #field <= 96 and string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') then
    holders[#holders + 1] = field
  end
end
if #holders == 0 then
  return {3, 'hash with other fields'}
end
return {0, redis.call('PTTL', lock), unpack(holders)}
