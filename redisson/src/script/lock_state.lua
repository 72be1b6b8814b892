-- Returns whether all fields but `mode` have counts as values, as every client library stores them. A rate limiter, whose settings
-- are numbers too, does not pass.
local function holds_counts(lock, fields)
  local counts = 0
  for _, field in ipairs(fields) do
    if field ~= 'mode' then
      local value = redis.call('HSTRLEN', lock, field) <= 10 and redis.call('HGET', lock, field) or ''
      if not string.find(value, '^[1-9]%d*$') then
        return false
      end
      counts = counts + 1
    end
  end
  return counts > 0 and not (redis.call('HEXISTS', lock, 'rate') == 1 and redis.call('HEXISTS', lock, 'interval') == 1)
end

-- Returns the lock's mode ('none', 'lock', 'read' or 'write') and its holders, which are omitted if a read-write lock has more
-- than `most` fields, or if their ids have another form than Redisson's. Returns nil and a description if the key is not a lock.
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
  local names, holders = redis.call('HKEYS', lock), {}
  for _, field in ipairs(names) do
    if #field <= 96 and string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') then
      holders[#holders + 1] = field
    end
  end
  local known_mode = mode == 'lock' or mode == 'read' or mode == 'write'
  if #holders == 0 and not (known_mode and holds_counts(lock, names)) then
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

-- Gives a key that the script has just created its lease. If the account may not do that, the lock would never end: it is
-- removed, and the error returned.
local function begin_lease(lock, lease)
  local begun = redis.pcall('PEXPIRE', lock, lease)
  if type(begun) == 'table' then
    redis.call('DEL', lock)
    return begun
  end
end

-- Gives the key at least the lease, even if it has no expiry.
local function ensure_lease(lock, lease)
  if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
  end
end

