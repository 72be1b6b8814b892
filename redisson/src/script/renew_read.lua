-- Wants: each read hold that is still there at its count, with at least the lease left for the lock and the hold's markers.
-- Makes no hold anew, but a marker that is gone.
-- KEYS: lock and marker prefix for each    ARGV: lease ms, most markers of a hold, then holder and count for each lock
-- Replies, for each lock: 1 kept; 0 the lock is gone; 2 held by others; 3 no lock any more.
local lease, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = {}
for i = 1, #KEYS / 2 do
  local lock, prefix = KEYS[2 * i - 1], KEYS[2 * i]
  local me, count = ARGV[2 * i + 1], ARGV[2 * i + 2]
  local had = redis.pcall('HGET', lock, me)
  if type(had) == 'table' then
    replies[i] = 3
  elseif had then
    -- Always a write, and the first one: a full Redis refuses HSET and SET unless the script has already written.
    redis.call('PEXPIRE', lock, math.max(lease, redis.call('PTTL', lock)))
    if had ~= count then
      redis.call('HSET', lock, me, count)
    end
    for n = 1, tonumber(count) do
      local marker = prefix .. ':' .. n
      redis.call('SET', marker, 1, 'PX', math.max(lease, redis.call('PTTL', marker)))
    end
    for n = count + 1, math.min(tonumber(had) or 0, most) do
      redis.call('DEL', prefix .. ':' .. n)
    end
    replies[i] = 1
  else
    replies[i] = redis.call('EXISTS', lock) == 0 and 0 or 2
  end
end
return replies
