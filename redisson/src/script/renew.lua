-- Wants: each hold that is still there at its count, with at least the lease left. Creates nothing.
-- Serves re-entry, partial release, extending, renewal and verification; many locks in one call.
-- KEYS: locks    ARGV: lease ms, then holder and count for each lock
-- Replies, for each lock: 1 kept; 0 the lock is gone; 2 held by others; 3 no lock any more.
local call, pcall, lease = redis.call, redis.pcall, ARGV[1]
local replies = {}
for i = 1, #KEYS do
  local lock, me, count = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  local had = pcall('HGET', lock, me)
  if type(had) == 'table' then
    replies[i] = 3
  elseif had then
    -- One command for nearly all: GT shortens no lease. It leaves a key without one as it is, and a Redis before 7 does
    -- not know it.
    if pcall('PEXPIRE', lock, lease, 'GT') ~= 1 then
      call('PEXPIRE', lock, math.max(call('PTTL', lock), tonumber(lease)))
    end
    if had ~= count then
      -- Not before PEXPIRE: a full Redis refuses HSET unless the script has already written.
      call('HSET', lock, me, count)
    end
    replies[i] = 1
  else
    replies[i] = call('EXISTS', lock) == 0 and 0 or 2
  end
end
return replies
