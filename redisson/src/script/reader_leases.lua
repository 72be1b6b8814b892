-- Returns the longest PTTL of any living reader's markers, in ms; 0 if no reader is alive; nil if unknown: a marker has no
-- expiry or cannot be read, or the readers are too many to search. A node whose slot moves cannot read a missing marker, which
-- the other node may have.
local function longest_reader_ttl(lock, tagged, most)
  if redis.call('HLEN', lock) > 256 then
    return nil
  end
  local longest = 0
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' then
      local count = tonumber(redis.call('HGET', lock, field)) or 1
      for n = 1, math.min(count, most) do
        local left = redis.pcall('PTTL', tagged .. ':' .. field .. ':rwlock_timeout:' .. n)
        if left == -1 or type(left) == 'table' then
          return nil
        end
        longest = math.max(longest, left)
      end
    end
  end
  return longest
end

-- Limits a lock held by readers alone to the lease of its longest-living reader. Deletes it and returns true if none is
-- alive.
local function expire_with_readers(lock, tagged, most)
  local left = longest_reader_ttl(lock, tagged, most)
  if left and left <= 0 then
    redis.call('DEL', lock)
    return true
  elseif left and left < redis.call('PTTL', lock) then
    redis.call('PEXPIRE', lock, left)
  end
  return false
end

