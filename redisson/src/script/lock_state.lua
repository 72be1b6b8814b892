-- Returns the lock's mode ('none', 'lock', 'read' or 'write') and its holders, which are omitted if a read-write lock has more
-- than `most` fields. Returns nil and a description if the key is not a lock.
local function lock_state(lock, most)
  local kind = redis.call('TYPE', lock).ok
  if kind == 'none' then
    return kind, {}
  elseif kind ~= 'hash' then
    return nil, kind
  end
  local fields, mode = redis.call('HLEN', lock), 'lock'
  if redis.call('HEXISTS', lock, 'mode') == 1 then
    mode = redis.call('HSTRLEN', lock, 'mode') < 8 and redis.call('HGET', lock, 'mode') or 'read'
  end
  if mode == 'lock' and fields > 8 then
    return nil, 'hash with other fields'
  elseif mode ~= 'lock' and fields > most then
    return mode, {}
  end
  local holders = {}
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if #field <= 96 and string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') then
      holders[#holders + 1] = field
    end
  end
  if #holders == 0 then
    return nil, 'hash with other fields'
  end
  return mode, holders
end

-- Returns whether the head of a fair lock's queue is alive: it is next, whether the lock is held or free.
local function queue_has_living_head(queue, deadlines)
  if redis.call('TYPE', queue).ok ~= 'list' then
    return false
  end
  local score = redis.pcall('ZSCORE', deadlines, redis.call('LINDEX', queue, 0))
  if type(score) ~= 'string' then
    return false
  end
  local time = redis.call('TIME')
  return tonumber(score) > time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Gives the key at least the lease, even if it has no expiry.
local function ensure_lease(lock, lease)
  if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
  end
end

