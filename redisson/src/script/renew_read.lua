-- Sets the count of each read hold that still exists, and gives the lock and the hold's markers at least the lease; a lease of
-- 0 leaves the expiries alone. Never creates a hold, but a lease restores missing markers.
-- KEYS: lock and marker prefix for each    ARGV: lease ms, most markers per hold, then holder and count for each lock
-- Replies, for each lock: 1 it exists; 0 the lock is gone; 2 held by others; 3 not a lock.
local lease, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = {}
for i = 1, #KEYS / 2 do
  local lock, prefix = KEYS[2 * i - 1], KEYS[2 * i]
  local holder, count = ARGV[2 * i + 1], ARGV[2 * i + 2]
  local current = redis.pcall('HGET', lock, holder)
  if type(current) == 'table' then
    replies[i] = 3
  elseif current then
    local left = math.max(lease, redis.call('PTTL', lock))
    if left > 0 and (lease > 0 or current ~= count) then
      -- The first write: a full Redis refuses HSET and SET unless the script has already written.
      redis.call('PEXPIRE', lock, left)
    end
    if current ~= count then
      redis.call('HSET', lock, holder, count)
    end
    for n = 1, lease > 0 and count or 0 do
      local marker = prefix .. ':' .. n
      redis.call('SET', marker, 1, 'PX', math.max(lease, redis.call('PTTL', marker)))
    end
    for n = count + 1, math.min(tonumber(current) or 0, most) do
      redis.call('DEL', prefix .. ':' .. n)
    end
    replies[i] = 1
  else
    replies[i] = redis.call('EXISTS', lock) == 0 and 0 or 2
  end
end
return replies
