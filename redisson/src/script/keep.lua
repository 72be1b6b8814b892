-- Wants: each hold that is still there at its count, with at least the lease left. Creates nothing.
-- Serves re-entry, partial release, extending, renewal and verification; many locks in one call.
-- KEYS: locks    ARGV: lease ms, then holder and count for each lock
-- Replies, for each lock: 1 kept; 0 the lock is gone; 2 held by others; 3 no lock any more.
local lease = tonumber(ARGV[1])
local replies = {}
for i, lock in ipairs(KEYS) do
  local me, count = ARGV[2 * i], ARGV[2 * i + 1]
  local had = redis.pcall('HGET', lock, me)
  if type(had) == 'table' then
    replies[i] = 3
  elseif had then
    local ttl = redis.call('PTTL', lock)
    if ttl < lease then
      redis.call('PEXPIRE', lock, lease)
    end
    if had ~= count then
      if ttl >= lease then
        -- A full Redis refuses HSET unless the script has already written.
        redis.call('PEXPIRE', lock, ttl)
      end
      redis.call('HSET', lock, me, count)
    end
    replies[i] = 1
  else
    replies[i] = redis.call('EXISTS', lock) == 0 and 0 or 2
  end
end
return replies
