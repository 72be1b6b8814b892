-- How long the longest marker of a living reader still stands, in ms; 0: nobody who reads is alive. nil where there is no
-- telling: a marker without an end, or a crowd, which is not searched.
local function readers_left(lock, tagged, most)
  if redis.call('HLEN', lock) > 256 then
    return nil
  end
  local longest = 0
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' then
      local count = tonumber(redis.call('HGET', lock, field)) or 1
      for n = 1, math.min(count, most) do
        local left = redis.call('PTTL', tagged .. ':' .. field .. ':rwlock_timeout:' .. n)
        if left == -1 then
          return nil
        end
        longest = math.max(longest, left)
      end
    end
  end
  return longest
end

-- Gives a read-write lock that only readers have no more time than its longest living reader has. With none alive it
-- ends: true.
local function ends_with_readers(lock, tagged, most)
  local left = readers_left(lock, tagged, most)
  if left and left <= 0 then
    redis.call('DEL', lock)
    return true
  elseif left and left < redis.call('PTTL', lock) then
    redis.call('PEXPIRE', lock, left)
  end
  return false
end

