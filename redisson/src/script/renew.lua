-- Sets the count of each hold that still exists and gives it at least the lease; a lease of 0 leaves the expiry alone. Never
-- creates a hold.
-- Used for re-entry, partial release, extension, renewal and verification; one call may cover many locks.
-- KEYS: locks    ARGV: lease ms, then holder and count for each lock
-- Replies, for each lock: 1 it exists; 0 the lock is gone; 2 held by others; 3 not a lock.
local call, pcall, lease = redis.call, redis.pcall, ARGV[1]
local replies = {}
for i = 1, #KEYS do
  local lock, holder, count = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  local current = pcall('HGET', lock, holder)
  if type(current) == 'table' then
    replies[i] = 3
  elseif current then
    -- Usually one command suffices: GT never shortens a lease. It skips keys without an expiry, and Redis before 7 rejects
    -- it.
    if lease ~= '0' and pcall('PEXPIRE', lock, lease, 'GT') ~= 1 then
      call('PEXPIRE', lock, math.max(call('PTTL', lock), tonumber(lease)))
    end
    if current ~= count then
      -- A full Redis refuses HSET unless the script has already written.
      local left = lease == '0' and call('PTTL', lock) or 0
      if left > 0 then
        call('PEXPIRE', lock, left)
      end
      call('HSET', lock, holder, count)
    end
    replies[i] = 1
  else
    replies[i] = call('EXISTS', lock) == 0 and 0 or 2
  end
end
return replies
