-- Sets the count of each read hold that still exists, and gives the lock and the hold's markers at least its lease; a lease of
-- 0 leaves the expiries alone. Never creates a hold.
-- Redisson's readers set the expiry of the lock, and in old versions of all markers, to their own lease, which may be shorter.
-- A marker that is missing here may be on another node of a cluster, while its slot moves. So markers are restored only if their
-- prefixes are keys too, which no node has: Redis refuses a script some of whose keys are missing while their slot moves.
-- KEYS: locks; to restore missing markers, then the marker prefix of each
-- ARGV: 'renew', or 'verify' to extend only what is too short or missing; most markers per hold, count, then holder, marker prefix
-- and lease ms of each lock
-- Replies the number of holds that are renewed, then, for each other one, its index and: 0 the lock is gone; 2 held by others;
-- 3 not a lock; 4 renewed, but for markers that are missing.
local renews, most, count = ARGV[1] == 'renew', tonumber(ARGV[2]), ARGV[3]
local locks = (#ARGV - 3) / 3
local restore = #KEYS > locks
local replies = { locks }
local function report(index, state)
  replies[1], replies[#replies + 1], replies[#replies + 2] = replies[1] - 1, index, state
end
-- Returns false if the marker is missing. Usually one command suffices, as in the script for other holds.
local function extend(marker, lease)
  if redis.pcall('PEXPIRE', marker, lease, 'GT') == 1 then
    return true
  end
  local left = tonumber(redis.pcall('PTTL', marker))
  if left and left ~= -2 then
    if left < lease then
      redis.call('PEXPIRE', marker, lease)
    end
    return true
  elseif restore then
    redis.call('SET', marker, 1, 'PX', lease)
    return true
  end
  return false
end
for i = 1, locks do
  local lock, holder, prefix, lease = KEYS[i], ARGV[3 * i + 1], ARGV[3 * i + 2], tonumber(ARGV[3 * i + 3])
  local current = redis.pcall('HGET', lock, holder)
  if type(current) == 'table' then
    local reply = reply_to_failure(current)
    if reply.err then
      return reply
    end
    report(i, 3)
  elseif current then
    local before = redis.call('PTTL', lock)
    local left = math.max(lease, before)
    local shortened = before >= 0 and before < lease
    if left > 0 and (renews or restore and lease > 0 or shortened or current ~= count) then
      -- The first write: a full Redis refuses HSET and SET unless the script has already written.
      redis.call('PEXPIRE', lock, left)
    end
    if current ~= count then
      redis.call('HSET', lock, holder, count)
    end
    local complete = true
    for n = 1, lease > 0 and count or 0 do
      complete = extend(prefix .. ':' .. n, lease) and complete
    end
    for n = count + 1, math.min(tonumber(current) or 0, most) do
      redis.pcall('DEL', prefix .. ':' .. n)
    end
    if not complete then
      report(i, 4)
    end
  else
    report(i, redis.call('EXISTS', lock) == 0 and 0 or 2)
  end
end
return replies
