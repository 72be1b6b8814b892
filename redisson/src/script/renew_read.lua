-- Sets the count of each read hold that still exists, and gives the lock and the hold's markers at least the lease; a lease of
-- 0 leaves the expiries alone. Never creates a hold, but a lease restores missing markers.
-- KEYS: lock and marker prefix for each    ARGV: lease ms, most markers per hold, count, then the holder for each lock
-- Replies the number of holds that exist, then, for each other one, its index and: 0 the lock is gone; 2 held by others;
-- 3 not a lock.
local lease, most, count = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local replies = { #KEYS / 2 }
local function report(index, state)
  replies[1], replies[#replies + 1], replies[#replies + 2] = replies[1] - 1, index, state
end
for i = 1, #KEYS / 2 do
  local lock, prefix, holder = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 3]
  local current = redis.pcall('HGET', lock, holder)
  if type(current) == 'table' then
    report(i, 3)
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
  else
    report(i, redis.call('EXISTS', lock) == 0 and 0 or 2)
  end
end
return replies
