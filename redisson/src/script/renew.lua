-- Sets the count of each hold that still exists and gives it at least the lease; a lease of 0 leaves the expiry alone. Never
-- creates a hold.
-- Used for re-entry, partial release, extension, renewal and verification; one call may cover many locks.
-- KEYS: locks    ARGV: lease ms, count, then the holder for each lock
-- Replies the number of holds that exist, then, for each other one, its index and: 0 the lock is gone; 2 held by others;
-- 3 not a lock.
local call, pcall, lease, count = redis.call, redis.pcall, ARGV[1], ARGV[2]
local replies = { #KEYS }
local function report(index, state)
  replies[1], replies[#replies + 1], replies[#replies + 2] = replies[1] - 1, index, state
end
for i = 1, #KEYS do
  local lock, holder = KEYS[i], ARGV[i + 2]
  local current = pcall('HGET', lock, holder)
  if current ~= count and type(current) == 'table' then
    local reply = reply_to_failure(current)
    if reply.err then
      return reply
    end
    report(i, 3)
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
  else
    report(i, call('EXISTS', lock) == 0 and 0 or 2)
  end
end
return replies
