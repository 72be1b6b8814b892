-- What stands at the key: 'none', 'lock', 'read' or 'write', and its holders unless a read-write lock has more fields than
-- `most`; or nil, and what it is instead.
local function occupant(lock, most)
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

-- Whether a fair lock's queue has a head whose deadline is still to come: it has the next turn, be the lock held or free.
local function queue_has_turn(queue, deadlines)
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

-- Gives the key at least the lease, and one where it has none.
local function raise(lock, lease)
  if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
  end
end

